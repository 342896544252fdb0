"""Writes goldens/text: small tokenizers of each kind, and what the oracle makes of difficult texts.

strings.json            the texts
<name>/tokenizer.json   a tokenizer trained here
<name>/expected.json    a record per text: `ids`; `bare` (add_special_tokens off), `plain` (special tokens in the text stay
                        text), `text` (decoded) and `skipped` (decoded without special tokens), each only where it
                        differs from `ids`, the text, or `text`
components.json         normalizers and pre-tokenizers alone
t5/spiece.model         a SentencePiece model; its expected.json has what sentencepiece makes of each part between special
                        tokens, and `transformers` where Transformers' T5Tokenizer, which goes without sentencepiece, differs
llama2/tokenizer.model  the model that llama2, mistral and phi3 were converted from; models.json: as Transformers reads it
configs.json            tokenizer_config.json files over the smollm tokenizer, as Transformers reads them
smollm2.json            the real SmolLM2's ids; needs its folder (scripts/fetch_model.py) as argument
"""

import collections
import json
import pathlib
import re
import sys
import tempfile

import common
import difficult_strings
import sentencepiece_shapes as shapes
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = common.GOLDENS / "text"
STRINGS = difficult_strings.strings()
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def corpus():
    words = "the of and to in is that it was for on are with as his they be at one have this from or had by hot".split()
    english = " ".join(words[(i * 7 + i * i) % len(words)] for i in range(400))
    return [*STRINGS, english]


def with_few_characters(texts, count):
    """The texts with only their most frequent characters. (The trainer's own limit_alphabet is not deterministic.)"""
    seen = collections.Counter("".join(texts))
    kept = set(sorted(seen, key=lambda character: (-seen[character], character))[:count])
    return ["".join(character for character in text if character in kept) for text in texts]


def train(tokenizer, vocab_size, special, alphabet):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(normalizer, pre_tokenizer, special=(), vocab_size=640):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, vocab_size, list(special), sorted(pre_tokenizers.ByteLevel.alphabet()))


def smollm():
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(None, pre_tokenizers.Sequence([digits, words]), special)


def qwen():
    words = pre_tokenizers.Sequence([split(QWEN), pre_tokenizers.ByteLevel(False, False, False)])
    tokenizer = byte_level(normalizers.NFC(), words)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def llama3():
    """Merges in the old form, and tokens that only ignore_merges reaches."""
    words = pre_tokenizers.Sequence([split(LLAMA3), pre_tokenizers.ByteLevel(False, True, False)])
    tokenizer = byte_level(None, words)
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    model["ignore_merges"] = True
    for token in ["ĠSTRASSE", "Hello", "ĠPRESERVED", "999", "user"]:
        model["vocab"].setdefault(token, len(model["vocab"]))
    model["merges"] = [" ".join(merge) for merge in model["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    template = processors.TemplateProcessing(single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]}:1 $B:1", special_tokens=[bos])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def byte_fallback():
    """As Llama 2's: no pre-tokenizer, spaces written as U+2581, characters that are not known as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(with_few_characters(corpus()[:120], 120), trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    document["post_processor"] = json.loads(processors.BertProcessing(("</s>", 2), ("<s>", 1)).__getstate__())
    return Tokenizer.from_str(json.dumps(document))


def learn_merges(words, count):
    """The plainest BPE training, ties broken by spelling; the trainer's order depends on hashes where there is a prefix."""
    words = [["##" * (i > 0) + c + "</w>" * (i + 1 == len(word)) for i, c in enumerate(word)] for word in words if word]
    vocabulary = {symbol: None for word in words for symbol in sorted(word)}
    merges = []
    while len(merges) < count:
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append((left, right))
        vocabulary[left + right[2:]] = None
        for word in words:
            for i in range(len(word) - 1):
                if word[i : i + 2] == [left, right]:
                    word[i : i + 2] = [left + right[2:]]
    return vocabulary, merges


def unknown():
    """Characters as symbols, an unknown token that is not fused, subword prefix and word suffix."""
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    texts = [normalizer.normalize_str(text) for text in with_few_characters(corpus(), 80)]
    words = [word for text in texts for word, _ in pre_tokenizer.pre_tokenize_str(text)]
    vocabulary, merges = learn_merges(words, 150)
    ids = {token: i for i, token in enumerate(["[UNK]", *vocabulary])}
    affixes = {"continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="[UNK]", **affixes))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


FLAG_TEXTS = [
    "<l>", "  <l>  ", "a <l> b", "<r> \n x", "x <r>", "a  <lr>  b", "<lr><lr>", " <lr>  <lr> ", "a <l><r> b", "<r>  <l>", "<r> \u3000<lr>\u0085x",
    "<w>", "a<w>", "<w>b", "a <w> b", "a_<w>", "\u00e9<w>", "-<w>-", "<w><w>", "\u0301<w>", "\u4f60<w>\u597d", "<w>\u200d", "1<w>", "\u24b6<w>",
    "LOUD", "loud", "Loud", "xlOuDx", " LOUD LOUD", "a<N>b", "A<n>B", "caf\u00e9", "CAFE\u0301", "cafe\u0301 CAF\u00c9 x",
    "word", "a word b", "words", "sword", "WORD", " word\n", "<s>", "a<s>b", "<S>", "<both>", "<BOTH>", " \t<sl> x", "<sl>", "abcabcd", "abcab", "ABC",
]  # fmt: skip


def flags():
    """Added tokens with every flag, over a normalizer that changes them."""
    lower = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer = byte_level(lower, pre_tokenizers.ByteLevel(add_prefix_space=True), vocab_size=300)
    tokenizer.add_tokens(
        [
            AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<w>", single_word=True, normalized=False),
            AddedToken("LOUD", normalized=True), AddedToken("<N>", normalized=False), AddedToken("caf\u00e9", normalized=True),
            AddedToken("word", single_word=True, lstrip=True, normalized=True), AddedToken("abc", normalized=True),
            AddedToken("abcd", normalized=False), AddedToken("bcab", normalized=True),
        ]
    )  # fmt: skip
    tokenizer.add_special_tokens(
        [AddedToken("<s>"), AddedToken("<BOTH>", normalized=True), AddedToken("<sl>", lstrip=True, rstrip=True)]
    )
    return tokenizer


def record(tokenizer, text):
    def ids(special_tokens=True, plain=False):
        tokenizer.encode_special_tokens = plain
        return tokenizer.encode(text, add_special_tokens=special_tokens).ids

    entry = {"ids": ids()}
    variants = {"bare": ids(special_tokens=False), "plain": ids(plain=True)}
    entry |= {key: value for key, value in variants.items() if value != entry["ids"]}
    decoded = tokenizer.decode(entry["ids"], skip_special_tokens=False)
    skipped = tokenizer.decode(entry["ids"], skip_special_tokens=True)
    entry |= {"text": decoded} if decoded != text else {}
    entry |= {"skipped": skipped} if skipped != decoded else {}
    return entry


def write(name, tokenizer, texts, old_merges=False):
    document = json.loads(tokenizer.to_str())
    if old_merges:
        document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    folder = TEXT / name
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    (folder / "tokenizer.json").write_text(content)
    loaded = Tokenizer.from_str(content)
    records = [record(loaded, text) for text in texts]
    if texts is not STRINGS:
        records = [{"input": text} | entry for text, entry in zip(texts, records)]
    common.write_json(folder / "expected.json", {"made_with": made_with(), "vocab_size": loaded.get_vocab_size(), "records": records})


def made_with():
    versions = {module.__name__: module.__version__ for module in (tokenizers, shapes.sentencepiece)}
    return common.made_with(__file__, difficult_strings.__file__, shapes.__file__) | versions


NORMALIZERS = [
    normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents(),
    normalizers.Strip(True, False), normalizers.Strip(False, True), normalizers.Strip(True, True), normalizers.Prepend("\u2581"),
    normalizers.Replace("a", "<\u00e9>"), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"\d|x*"), "-"),
    normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
]  # fmt: skip
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PRE_TOKENIZERS = [
    *[split(r"\s|\d", behavior, invert) for behavior in BEHAVIORS for invert in (False, True)],
    *[split(r"x*", behavior) for behavior in BEHAVIORS],
    *[pre_tokenizers.Split("a", behavior) for behavior in BEHAVIORS],
    split(r"\w+"), split(r"\p{Han}+"), split(r"[^\w\s]"), split(r"\W"), split(r"[\s!]+"), split(r"[^\S\n]+"), split(r"^.|.$"), split(r"(?m:a.b)"), split(r"\h+"),
    split(r"(?i:[A-F]+)"), split(r"(?i)hello|'S"), split(r"\u4f60|\x41|\x{e9}"), split(r"[^(\s|[.,!?\u2026])]+"), split(r"a{2,3}|b{,2}c?|\{"),
    split(r"\p{Lu}+|\p{Han}|\p{^L}"), split(r"(?<=a)b|a(?!b)|(?>\p{N}+)"), split(r"\p{L}++\p{M}*+|\s?+"), split(r"\v|\t|[\r\n]"),
    split(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    pre_tokenizers.Digits(False), pre_tokenizers.Digits(True), pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(),
    *[pre_tokenizers.Punctuation(behavior) for behavior in BEHAVIORS],
    pre_tokenizers.ByteLevel(True, True, True), pre_tokenizers.ByteLevel(False, True, True), pre_tokenizers.ByteLevel(True, True, False),
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(True, True, True)]),
    *[pre_tokenizers.Metaspace("\u2581", scheme, cut) for scheme in ("always", "first", "never") for cut in (True, False)],
    pre_tokenizers.Metaspace("x", "always"), pre_tokenizers.Sequence([pre_tokenizers.Metaspace("_", "first"), pre_tokenizers.Digits()]),
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("\u2581", "always")]),
]  # fmt: skip
COMPONENT_TEXTS = [
    " Hello, 12 World!!  3x ", "aab\tA\u00e9\u4f60 a\nb\r\n\u2460\u00bd", "xxaxx\u00a0a\u0085b\u180ec\u2028_d\u203fe", "e\u0301\u0327 \u212b\ufb01 \uac00\u11a8",
    "\u0130I\u0131\u03a3\u03c3 \u017f's DON'T", "\u24b6\u0903\u200d\u0661{aaaa}bbc\u200bz", "\x1ca\x1fb\x0bc\x00d", "\n\na\nb\n", "a!?b...c$+<", "\U0001f468\u200d\U0001f469 \u0e33\u0e49 \u3007\u3001\u30fc\u00b2",
]  # fmt: skip


def write_components():
    def state(component):
        return json.loads(component.__getstate__())

    records = []
    for normalizer in NORMALIZERS:
        results = [normalizer.normalize_str(text) for text in COMPONENT_TEXTS]
        records.append({"normalizer": state(normalizer), "results": results})
    for pre_tokenizer in PRE_TOKENIZERS:
        results = [[piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)] for text in COMPONENT_TEXTS]
        records.append({"pre_tokenizer": state(pre_tokenizer), "results": results})
    common.write_json(TEXT / "components.json", {"made_with": made_with(), "texts": COMPONENT_TEXTS, "records": records})


END = {"content": "<|im_end|>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}
CONFIGS = [
    {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"},
    {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": True},
    {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": True},
    {"eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": False},
    {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": None, "clean_up_tokenization_spaces": True},
    {"eos_token": "<|im_end|>", "added_tokens_decoder": {"2": END}},
    {"eos_token": END | {"__type": "AddedToken"}, "additional_special_tokens": ["Hello", "<|im_start|>"]},
    {"extra_special_tokens": {"image_token": "<image>"}, "pad_token": "<pad>"},
    {"eos_token": "the", "mask_token": END | {"__type": "AddedToken", "content": "<mask>"}},
]  # fmt: skip
CONFIG_TEXTS = ["Hello the  <|im_end|> world .", "<|im_start|>a<image><pad><|im_end|>", "x <mask> y"]


def write_configs():
    records = []
    for config in CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_bytes((TEXT / "smollm" / "tokenizer.json").read_bytes())
            content = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config)
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(content)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = [tokenizer(text)["input_ids"] for text in CONFIG_TEXTS]
        special = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")}
        decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
        records.append({"config": config, "vocab_size": len(tokenizer), "special": special, "ids": ids, "skipped": decoded})
    common.write_json(TEXT / "configs.json", {"made_with": made_with(), "texts": CONFIG_TEXTS, "records": records})


def write_model(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    records = []
    for text in STRINGS:
        ids = tokenizer(text)["input_ids"]
        decoded, skipped = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))
        entry = {"input": text, "ids": ids}
        records.append(entry | ({"text": decoded} if decoded != text else {}) | ({"skipped": skipped} if skipped != decoded else {}))
    common.write_json(TEXT / "smollm2.json", {"made_with": made_with(), "vocab_size": len(tokenizer), "records": records})


def in_folder(model_type, model_name, model, config):
    """What AutoTokenizer makes of a folder with a SentencePiece model and a tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / model_name).write_bytes(model)
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        (pathlib.Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type}))
        return transformers.AutoTokenizer.from_pretrained(folder)


def write_t5():
    with tempfile.TemporaryDirectory() as folder:
        model = shapes.t5_model(corpus(), pathlib.Path(folder) / "rules.tsv")
    (TEXT / "t5").mkdir(exist_ok=True)
    (TEXT / "t5" / "spiece.model").write_bytes(model)
    processor = shapes.pieces_of(model)[0]
    transformers_t5 = in_folder("t5", "spiece.model", model, {"tokenizer_class": "T5Tokenizer"})
    special = sorted(transformers_t5.all_special_tokens, key=len, reverse=True)
    parts = re.compile("(" + "|".join(map(re.escape, special)) + ")")
    end = transformers_t5.eos_token_id
    records = []
    for text in [*STRINGS[2::3], *shapes.TEXTS]:
        bare = []
        for part in parts.split(text):
            bare += [transformers_t5.convert_tokens_to_ids(part)] if part in special else processor.encode(part)
        entry = {"input": text, "ids": [*bare, end], "bare": bare, "plain": [*processor.encode(text), end]}
        theirs = transformers_t5(text)["input_ids"]
        entry |= {"transformers": theirs} if theirs != entry["ids"] else {}
        decoded, skipped = (transformers_t5.decode(entry["ids"], skip_special_tokens=skip) for skip in (False, True))
        records.append(entry | ({"text": decoded} if decoded != text else {}) | ({"skipped": skipped} if skipped != decoded else {}))
    assert sum("transformers" in entry for entry in records) <= 5, [e["input"] for e in records if "transformers" in e]
    document = {"made_with": made_with(), "vocab_size": len(transformers_t5), "records": records}
    common.write_json(TEXT / "t5" / "expected.json", document)


MODEL_CONFIGS = [
    {"legacy": True}, {"legacy": False, "add_bos_token": True}, {"legacy": True, "add_bos_token": True, "add_eos_token": True},
    {"tokenizer_class": "PreTrainedTokenizerFast"}, {"legacy": False, "pad_token": "</s>", "unk_token": "<unk>"},
]  # fmt: skip


def write_sentencepiece_shapes():
    model = shapes.bpe_model(with_few_characters(corpus(), 120), vocab_size=620)
    gemma_model = shapes.bpe_model(
        with_few_characters(corpus(), 120), vocab_size=640, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        bos_piece="<bos>", eos_piece="<eos>", user_defined_symbols=["<mask>", "<unused0>", *shapes.GEMMA_RUNS],
    )  # fmt: skip
    write("llama2", shapes.llama2(model), [*STRINGS[0::4], *shapes.TEXTS])
    write("mistral", shapes.mistral(model), [*STRINGS[1::4], *shapes.TEXTS])
    write("phi3", shapes.phi3(model), [*STRINGS[2::4], *shapes.TEXTS])
    write("gemma", shapes.gemma(gemma_model), [*STRINGS[3::4], *shapes.TEXTS])
    (TEXT / "llama2" / "tokenizer.model").write_bytes(model)
    records = []
    for config in MODEL_CONFIGS:
        # Mistral's tokenizer follows the model's own settings; Llama's own class does not.
        tokenizer = in_folder("mistral", "tokenizer.model", model, config)
        ids = [tokenizer(text)["input_ids"] for text in shapes.TEXTS]
        special = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")}
        decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
        records.append({"config": config, "vocab_size": len(tokenizer), "special": special, "ids": ids, "skipped": decoded})
    common.write_json(TEXT / "models.json", {"made_with": made_with(), "texts": shapes.TEXTS, "records": records})


def main():
    common.set_up()
    TEXT.mkdir(parents=True, exist_ok=True)
    (TEXT / "strings.json").write_text(json.dumps(STRINGS, indent=0) + "\n")
    write("smollm", smollm(), STRINGS)
    write("qwen", qwen(), STRINGS)
    write("llama3", llama3(), STRINGS, old_merges=True)
    write("byte_fallback", byte_fallback(), STRINGS[::3])
    write("unknown", unknown(), STRINGS[1::3])
    write("flags", flags(), FLAG_TEXTS)
    write_sentencepiece_shapes()
    write_t5()
    write_components()
    write_configs()
    if len(sys.argv) > 1:
        write_model(sys.argv[1])


if __name__ == "__main__":
    main()
