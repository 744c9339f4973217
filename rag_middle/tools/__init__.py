"""Tools that a model may call: what they are, how templates write calls, reading them back.

Tools go to the model through its own chat template, which decides how calls are written. `formats`
knows the families' ways of writing; `definitions` checks what callers pass. Nothing here needs a
model or a tokenizer.
"""
