#!/usr/bin/env python3
"""Writes tests/golden/classifiers: tiny models that classify texts and pairs of texts, and what transformers gives.

  make_classifier_goldens.py            needs torch and transformers 5, which no test does

The weights are random, of a size that makes the answers differ. Tokenizers are those of tests/golden/models, of which
the tests take copies. golden.json has for each model texts and pairs with the logits of its classes in float32.
"""
import json
import pathlib
import shutil

import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
BERT = dict(SMALL, vocab_size=768, max_position_embeddings=128, type_vocab_size=2)
MODELS = {
    "bert_reranker": ("bert_embed", transformers.BertForSequenceClassification,
                      transformers.BertConfig(**BERT, num_labels=1)),
    "bert_classes": ("bert_embed", transformers.BertForSequenceClassification,
                     transformers.BertConfig(**BERT, id2label={0: "sad", 1: "even", 2: "glad"})),
    "xlm_roberta_reranker": ("bert_embed", transformers.XLMRobertaForSequenceClassification,
                             transformers.XLMRobertaConfig(**dict(BERT, type_vocab_size=1, max_position_embeddings=130),
                                                           pad_token_id=1, layer_norm_eps=1e-5, num_labels=1)),
    "qwen3_reranker": ("qwen3_embed", transformers.Qwen3ForSequenceClassification,
                       transformers.Qwen3Config(**SMALL, vocab_size=640, max_position_embeddings=256, head_dim=8,
                                                num_key_value_heads=2, num_labels=1, pad_token_id=633,
                                                tie_word_embeddings=True)),
}
TEXTS = ["The river runs to the sea.", "A short one", "Where do birds sleep at night, and why there?"]
PAIRS = [["Where do birds sleep?", "Birds sleep in trees."], ["Where do birds sleep?", "The sea is deep and cold, and salt."],
         ["What is deep?", "The sea is deep and cold, and salt."]]


@torch.no_grad()
def write(name, source, make, config):
    tokenizer_folder = GOLDEN / "models/models" / source
    torch.manual_seed(len(name))
    model = make(config).eval().float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.25)
        elif (parameter == 0).all():
            parameter.normal_(0, 0.1)
    folder = GOLDEN / "classifiers" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)

    def logits(*texts):
        encoded = tokenizer(*texts, return_tensors="pt")
        if config.model_type == "xlm-roberta":
            encoded.pop("token_type_ids", None)
        return model(**encoded).logits[0].tolist()

    return {"tokenizer": source, "texts": [[text, logits(text)] for text in TEXTS],
            "pairs": [[*pair, logits(*pair)] for pair in PAIRS]}


def main():
    torch.set_num_threads(1)
    golden = {name: write(name, *what) for name, what in MODELS.items()}
    lines = [f'"{name}": {json.dumps(one)}' for name, one in golden.items()]
    (GOLDEN / "classifiers/golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
