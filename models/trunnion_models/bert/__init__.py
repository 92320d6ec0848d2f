"""BERT: an encoder of text, for embeddings (sentence-transformers) and for scores of texts or pairs (classifiers)."""

ARCHITECTURES = {"BertForSequenceClassification": "model:BertForSequenceClassification"}

POOLING_ARCHITECTURES = {"BertModel": "model:BertEmbedding"}
