"""Reads models' own files into an :class:`kvbudget.layers.Architecture`, one format a module.

``config`` Hugging Face's config.json, ``mistral`` params.json, ``gguf`` the header of a .gguf file, ``safetensors`` the
headers of a checkpoint (exact bytes of the weights), ``table`` the models that are known by name. All of them take
mappings or bytes; ``files`` is the shell that opens a folder.
"""
