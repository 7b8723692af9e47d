"""The kvbudget worker: an OpenAI-compatible server whose admission unit is the KV page."""
