"""Text in and out of a model: tokenizers, chat templates, incremental detokenisation, stop strings.

Needs `tokenizers` and `jinja2`, not `transformers`; tests hold the results equal to those of `transformers`.
"""
