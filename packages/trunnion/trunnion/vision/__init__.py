"""Images in a prompt: pixels to patches, placeholders to the right number of tokens, positions along three axes.

What a host or a command needs is `trunnion.vision.prompt`:

* `load_vision(folder, tokenizer)` reads `config.json` and the image processor's file of a model folder once;
* `.encode_chat(messages)` gives a `VisionPrompt`: token ids, positions [n, 3], the delta for decode steps, and per
  image its patches, grid, span of placeholder tokens and digest;
* `user_message(text, images)` makes the message of one question about some images.

Needs Pillow (`pip install 'trunnion[images]'`), not `torchvision`.
"""
