"""Mistral Small 3.1 and Ministral 3 as published, beside a vision tower: their text."""

ARCHITECTURES = {"Mistral3ForConditionalGeneration": "model:Mistral3ForConditionalGeneration"}
