"""BERT: an encoder of text, for embeddings (sentence-transformers) and for scores of one text (classifiers)."""

ARCHITECTURES = {"BertForSequenceClassification": "model:BertForSequenceClassification"}

POOLING_ARCHITECTURES = {"BertModel": "model:BertEmbedding"}
