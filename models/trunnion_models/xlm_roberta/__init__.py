"""XLM-RoBERTa: BERT with positions from the padding token's on; embeddings, and cross-encoders that score pairs."""

ARCHITECTURES = {"XLMRobertaForSequenceClassification": "model:XLMRobertaForSequenceClassification"}

POOLING_ARCHITECTURES = {"XLMRobertaModel": "model:XLMRobertaEmbedding"}

MAX_POSITIONS = "config:max_positions"
"""Not `max_position_embeddings`: the table of positions has rows that no token of a text uses."""
