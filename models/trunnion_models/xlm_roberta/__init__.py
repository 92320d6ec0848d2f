"""XLM-RoBERTa: BERT with positions from the padding token's on; embeddings, and cross-encoders that score pairs."""

ARCHITECTURES = {"XLMRobertaForSequenceClassification": "model:XLMRobertaForSequenceClassification"}

POOLING_ARCHITECTURES = {"XLMRobertaModel": "model:XLMRobertaEmbedding"}
