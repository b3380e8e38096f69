"""Pictures of squares, and a small vision-language model that counts them carelessly."""
