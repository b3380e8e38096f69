"""Python reads it as it begins: whatever process has this folder on its path keeps a record."""

import recorded_lines

recorded_lines.start()
