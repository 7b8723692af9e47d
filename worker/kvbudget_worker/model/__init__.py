"""The llama-family decoder: config, parameters, forward pass."""
