"""Record the entered functions in each Python process of a run; Python imports this module."""

import entered_functions

entered_functions.install()
