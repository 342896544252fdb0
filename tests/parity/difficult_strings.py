"""Texts that tokenizers get wrong, for make_tokenizer_goldens.py. SPECIAL stands for a tokenizer's special token."""

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>"]

PLAIN = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", " \n ", "\t\t x", "a\tb", "a \t b",
    "Hello world", " Hello world", "Hello world ", "  Hello   world  ", "Hello\nworld", "Hello\n\n\nworld", "Hello \n world",
    "line one\r\nline two\r\n", "tabs\tand  spaces\n\tmixed \t\n  end", "a  b   c    d     e", "    indented = True",
    "trailing   ", "trailing\n\n  ", "\n\n  leading", "x\n y\n  z\n   w", " \t\n\r\x0b\x0c", "a\x0bb\x0cc",
    # contractions
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "I'm'm 's's'S", "'s't're've'm'll'd",
    "'S'T'RE'VE'M'LL'D", "it\u2019s \u2018quoted\u2019", "rock 'n' roll", "O'Reilly's", "'tis", "x'\u017f y'\u212a", "can't've",
    "DON'T'll", "l'homme d'\u00e9t\u00e9 qu'il",
    # numbers
    "0", "1234567890", "12 345 678", "1,234,567.89", "1.5e-10", "3.14159", "0x1F 0b101", "2024-01-31T23:59:59Z", "+49 (0)30 123456",
    "$1,000.00", "100%", "1st 2nd 3rd", "a1b2c3", "1a 2b", "x86_64", "\u0661\u0662\u0663\u0664", "\u0967\u0968\u0969",
    "\uff11\uff12\uff13", "\u00bd \u00bc \u2153", "\u2160\u2161\u2162 \u2460\u2461", "x\u00b2+y\u00b3", "10\u00d710", "1 000 000",
    "\U0001d7d8\U0001d7d9", "999999999999999999999999999", "1/2 3\u20444", "No.1", "\u4e00\u4e8c\u4e09\u56db",
    # CJK and its neighbours
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002", "\u4f60\u597d world \u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a", "\uff76\uff80\uff76\uff85",
    "\u304c\u304b\u3099", "\u30d7\u30ed\u30b0\u30e9\u30df\u30f3\u30b0\u3000\u8a00\u8a9e", "\uc548\ub155\ud558\uc138\uc694", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u1112\u1161\u11ab vs \ud55c", "\U00020000\U0002a6d6", "\u9fff\u3400", "\u7e41\u9ad4\u5b57\u8207\u7b80\u4f53\u5b57", "\uff21\uff22\uff23\uff5e",
    "\u300c\u5f15\u7528\u300d\u3001\u300e\u4e8c\u91cd\u300f", "\u8c61\u5f62\u6587\u5b57\n\u6539\u884c", "\u3400\u4dbf\u4e00", "\uf900\ufa10", "\u2f00\u2f01",
    # other scripts
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0634\u064f\u0643\u0652\u0631\u064b\u0627", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd", "abc \u05d0\u05d1\u05d2 123 \u0623\u0628\u062c",
    "\u202eright to left\u202c", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u0e17\u0e35\u0e48\u0e22\u0e32\u0e01", "\u0e33\u0e19\u0e49\u0e33", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0915\u094d\u0937\u093f", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd", "\u0c24\u0c46\u0c32\u0c41\u0c17\u0c41", "\u1019\u103c\u1014\u103a\u1019\u102c", "\u17a2\u1780\u17d2\u179f\u179a", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0401\u0436 \u0438 \u0419\u043e\u0434",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5", "\u039f\u0394\u039f\u03a3 \u03bf\u03b4\u03cc\u03c2", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u0540\u0561\u0575\u0565\u0580\u0565\u0576", "\u12a0\u121b\u122d\u129b", "\u13e3\u13b3\u13a9 \uab70", "\u1c90\u10d0",
    "\u0130stanbul \u0131\u015f\u0131k I\u0307", "\u0e01\u0e33\u0e01\u0e36\u0e01\u0e37",
    # accents, combining marks, compatibility
    "caf\u00e9 cafe\u0301", "na\u00efve r\u00e9sum\u00e9", "\u00c5ngstr\u00f6m \u212b A\u030a", "e\u0301\u0302\u0323", "q\u0323\u0307 q\u0307\u0323", "\u1e9b\u0323", "Z\u0351\u036b\u0343a\u0334\u0321l\u0300g\u0301o\u0302",
    "\u0301leading mark", " \u0301space mark", "a\u20dd", "\ufb01 \ufb03 \ufb06", "\u0132 \u01c4 \u2122", "stra\u00dfe STRASSE \u1e9e", "\u00b5 \u03bc", "\u2126 \u03a9", "\u1100\uac00\u11a8", "\u0958 \u0915\u093c", "\ufdfa",
    "Vi\u1ec7t Nam ti\u1ebfng Vi\u1ec7t", "Vie\u0323\u0302t", "\u0344 \u0374 \u037e", "\u2000\u2001", "a\u0338= \u2260", "\U0001d15e\U0001d1bb",
    # emoji
    "\U0001f600", "\U0001f600\U0001f601\U0001f602", "hi\U0001f600there", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f926\U0001f3fc\u200d\u2642\ufe0f",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f \u2764\ufe0e", "1\ufe0f\u20e3#\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u263a\u00a9\u2122\u24c2\U0001f170",
    "\U0001fae8\U0001f9d1\u200d\U0001f680", "\u2615 \u2614!",
    # unusual white space and invisible characters
    "a\u0085b", "a\u00a0b\u00a0\u00a0c", "a\u1680b", "a\u2028b\u2029c", "a\u3000\u3000b", "a\u2002\u2003\u2009b", "a\u202fb\u205fc", "a\u180eb \u180e", "a\u200bb \u200b c",
    "a\u200cb\u200dc", "\ufeffBOM", "a\u2060b\u00adc", "a\x1cb\x1dc\x1ed\x1fe", "x \u0085\u00a0 y", "\u00a0\n\u3000 z", " \u2003\t\u00a0", "a\u2800b", "a\u115f\u3164b",
    # control, private use, non-characters, replacement
    "a\x00b", "\x00", "\x00\x00\x01\x02\x7f", "\x1b[31mred\x1b[0m", "\x80\x81\x9f", "\ue000\uf8ff", "\U000f0000\U0010ffff", "\ufffe\uffff", "\ufffd", "a\ufffdb\ufffd\ufffd", "\ud7ff\ue000", "\u0378\u0e7f", "\ufff9x\ufffb",
    # punctuation and symbols
    "!?.,;:", "...", "\u2026\u2014\u2013", "\u201cquoted\u201d \u00abguillemets\u00bb", "a-b_c/d\\e", "(a)[b]{c}<d>", "~`!@#$%^&*()_+-={}|[]\\:\";'<>?,./", "\u20ac\u00a3\u00a5\u20b9", "\u221a2 \u2248 1.41 \u2264 \u221e", "\u2190\u2191\u2192\u2193", "\u2500\u2502\u250c\u2588",
    "a,b , c ,d", "wait...what?!", "\u00bfqu\u00e9? \u00a1s\u00ed!", "\u061f\u060c\u066a", "\u203f\u2040 snake_case __dunder__", "#hashtag @user", "--flag=value -x", "***bold*** _it_", "\u2e2e\u2e3a", "!!\n\n??", ".\n", ";\r\n",
    # code and markup
    "def f(x):\n    return x**2  # square\n", "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n}", "SELECT * FROM t WHERE a='b';", "<div class=\"x\">&nbsp;</div>", "{\"key\": [1, 2.5, null, true]}",
    "std::vector<std::string>{}", "camelCaseAndPascalCase HTTPServerError", "a\\nb\\tc", "if x:\n\n\n        pass", "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n", "$\\alpha + \\beta$", "C:\\Users\\x", "#!/bin/sh\nset -e\n",
    "https://example.com/path?q=1&r=%20#frag", "user.name+tag@example.co.uk", "www.example.org:8080", "192.168.0.1 ::1 fe80::1%eth0", "deadBEEF 0xdeadbeef", "aGVsbG8gd29ybGQ=", "key=value; Path=/; HttpOnly", "v1.2.3-rc.4+build5",
    # long runs
    "a" * 300, " " * 130, "\n" * 70, "ab" * 100, "\u4f60" * 60, "\U0001f600" * 30, "1" * 100, " a" * 80, "!" * 90, "\u0301" * 40, "\t" * 33, " \n" * 40, "'s" * 30, "aA" * 60 + " " * 40 + "b", "e\u0301" * 50,
    # mixtures
    "Hello\u4f60\u597d\U0001f600\u043f\u0440\u0438\u0432\u0435\u0442\u0645\u0631\u062d\u0628\u0627", "1\u4e002\u4e8c3\u4e09", "a\u00a01\u3000\u4f60 \u200d\U0001f600", "The quick brown fox jumps over the lazy dog. 0123456789!", "\u00e9\u4f60\U0001f600\u0e01\u0e33\ufffd\u00e9",
    "A\u030a\u4f60\u0301\U0001f44d\U0001f3fd\u0e33", "\u00df\u017f\u212a\u0130\u0131 \ufb00", "lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt", "  \u4f60\u597d  \n\n 123abc'll  \t",
    "\u3042 \u3042  \u3042", "x\u0661y1z\u0967", "tab\t\u4f60\t\U0001f600\t",
]  # fmt: skip


def strings():
    """All texts: the plain ones, and special tokens at every kind of place in a text."""
    texts = list(PLAIN)
    for token in SPECIAL:
        texts += [token, f"{token}{token}", f"a{token}b", f" {token} ", f"{token}\nHello", f"Hello{token}", f"\u4f60{token}\U0001f600"]
    texts += [
        "<|im_start|>user\nHi there!<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n\u4f60\u597d<|im_end|>\n",
        "<|im_start", "|im_start|>", "<|im_start|", "<<|im_start|>>", "<|im_start|><|im_end", "<|IM_START|>", "<| im_start |>",
        "<|im_start|><|im_end|><|endoftext|><|begin_of_text|><|eot_id|>", "<|im_start<|im_end|>|>", "a  <|im_end|>  b",
        "<tool_call>\n{}\n</tool_call>", "x<tool_call>y", "<|begin_of_text|><|begin_of_text|>Hi<|eot_id|>",
    ]  # fmt: skip
    assert len(texts) == len(set(texts)), [t for t in texts if texts.count(t) > 1]
    return texts
