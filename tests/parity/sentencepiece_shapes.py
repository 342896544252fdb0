"""Small tokenizers in the shapes in which checkpoints have SentencePiece's, for make_tokenizer_goldens.py.

The pieces are trained here with the sentencepiece package; merges follow from the pieces' scores as in Transformers' converter.
"""

import io

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.tokenization_utils_base import generate_merges

SPACE = "\u2581"
# What T5's own rules (nmt_nfkc) do, on some characters: the whole table takes 240 kB.
SPACES = [0x9, 0xA, 0xC, 0xD, 0x85, 0xA0, 0x1680, *range(0x2000, 0x2010), 0x2028, 0x2029, 0x202F, 0x205F, 0x2581, 0x3000, 0xFEFF, 0xFFFD]
DROPPED = [*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F]
RULES = [(code, 0x20) for code in SPACES] + [(code, None) for code in DROPPED]
RULES += [(code, code - 0xFEE0) for code in range(0xFF01, 0xFF5F)] + [(0xB2, 0x32), (0x2460, 0x31), (0x212B, 0xC5)]
SEQUENCES = ["FB01\t66 69", "2026\t2E 2E 2E", "65 301\tE9", "41 30A\tC5", "304B 3099\t304C", "BD\t31 2044 32"]


def train(texts, **settings):
    """A SentencePiece model's bytes. The same texts give the same bytes."""
    lines = [line for text in texts for line in text.split("\n") if line and "\0" not in line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, shuffle_input_sentence=False, **settings
    )
    return model.getvalue()


def bpe_model(texts, **settings):
    """As Llama 2's and Gemma's: byte pairs, digits alone, bytes for rare characters, nothing normalized."""
    return train(
        texts, model_type="bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, **settings,
    )  # fmt: skip


def t5_model(texts, rules):
    """As T5's: a unigram model without a token that begins a text; `rules` is where to write the normalization rules."""
    lines = [f"{source:X}\t{'' if target is None else f'{target:X}'}" for source, target in RULES] + SEQUENCES
    rules.write_text("\n".join(lines) + "\n")
    return train(
        texts, model_type="unigram", vocab_size=420, character_coverage=0.98, normalization_rule_tsv=str(rules),
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip


def pieces_of(model):
    """(processor, {piece: id})."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor, {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}


def converted(model, special, normalizer=None, pre_tokenizer=None, end=()):
    """A tokenizer of the model's pieces, the `special` ones among them added tokens."""
    processor, vocabulary = pieces_of(model)
    merges = generate_merges(vocabulary, {piece: processor.get_score(i) for piece, i in vocabulary.items()}, special)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return tokenizer


def begins_with(tokenizer, token):
    pair = (token, tokenizer.token_to_id(token))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[pair]
    )
    return tokenizer


def legacy(model):
    """Before there was Metaspace's prepend_scheme: a space before every part of a text, by a normalizer."""
    prefix = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return converted(model, LLAMA_SPECIAL, normalizer=prefix, end=[decoders.Strip(" ", 1, 0)])


LLAMA_SPECIAL = ["<unk>", "<s>", "</s>"]


def llama2(model):
    """Special tokens that are looked for in the normalized text, as the first conversions have them."""
    tokenizer = legacy(model)
    tokenizer.add_special_tokens([AddedToken(token, normalized=True) for token in LLAMA_SPECIAL])
    return begins_with(tokenizer, "<s>")


def mistral(model):
    """Not legacy: a space before the text alone, and control tokens."""
    first = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    tokenizer = converted(model, LLAMA_SPECIAL, pre_tokenizer=first, end=[decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([*LLAMA_SPECIAL, "[INST]", "[/INST]", "[TOOL_CALLS]"])
    return begins_with(tokenizer, "<s>")


def phi3(model):
    """Added tokens that take the white space behind them, the end token among them though it is not special."""
    tokenizer = legacy(model)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in LLAMA_SPECIAL[:2]])
    tokenizer.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    named = ["<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"]
    tokenizer.add_special_tokens([AddedToken(token, rstrip=True, normalized=False) for token in named])
    pair = ("<s>", 1)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[pair])
    return tokenizer


GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
GEMMA_RUNS = [character * count for character, counts in (("\n", (1, 2, 3)), (SPACE, (2, 3, 4)), ("\t", (1, 2))) for count in counts]


def gemma(model):
    """No space before a text; runs of white space and markup as tokens."""
    words = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer = converted(model, GEMMA_SPECIAL, normalizers.Replace(" ", SPACE), words)
    tokenizer.add_special_tokens(GEMMA_SPECIAL)
    plain = ["<mask>", "<unused0>", *GEMMA_RUNS, "<div>", "</div>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    return begins_with(tokenizer, "<bos>")


TEXTS = [
    "<s>[INST] Hi [/INST] Hello </s>", "[INST]a[/INST]", " [INST]  a  [/INST]  b ", "<s> a", "a<s>b", "<unk>", "a <unk> b", "<s><s> x", "</s>\n\nx",
    "<|user|>\nHi there<|end|>\n<|assistant|>\n", "<|system|>  You <|end|> x", "a</s>  b", "<|endoftext|>\n x", "<|end|><|end|>", "<|user|>\u3000\u00a0x",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<bos>a", "<div>  x </div>\n", "a\n\n\n\nb", "a\t\t\tb", "a\u2581b", "\u2581a", "\u2581\u2581 a \u2581\u2581\u2581",
    " \u2581", "<0x41>", "<0x0A>b", "a<unused0>", "<mask>", "\u2581<s>\u2581", "<extra_id_0>", "a<extra_id_0>b <extra_id_99> c", " <extra_id_1> </s> x", "<pad>a</s>",
    "\ufb01ne \uff28\uff45\uff4c\uff4c\uff4f\uff01 x\u00b2", "a\u200bb \u200b c", "e\u0301e\u0301", "word " * 60, "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \u304b\u3099", "<extra_id_100>", "<extra_id_0", "don't stop...",
]  # fmt: skip
