"""Write down what each Python process of a run enters: Python imports this module by itself."""

import entered_functions

entered_functions.install()
