"""The data and the model of the first run: additions, and a network that adds carelessly."""
