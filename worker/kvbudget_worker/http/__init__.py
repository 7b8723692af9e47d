"""The HTTP surface: OpenAI's completions and chat, token counts, health, metrics."""
