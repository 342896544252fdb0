"""Random small templates, for comparing with jinja2: expressions over a few values, and statements around them."""

import random

VALUES = {
    "s": "Hello, World",
    "t": "  a\tb \n c  ",
    "u": "\u00c9t\u00e9 \u4f60\u597d \U0001f600 stra\u00dfe \u03a3\u0391\u03a3",
    "e": "",
    "i": 7,
    "n": -3,
    "z": 0,
    "f": 2.5,
    "g": -0.1,
    "b": True,
    "o": None,
    "l": [3, 1, 2, 10],
    "w": ["pear", "Apple", "fig", "apple"],
    "m": [1, "a", None, True, 2.0, [1], {"k": 1}],
    "x": [],
    "d": {"name": "Ada", "age": 36, "tags": ["x", "y"], "nested": {"deep": [1, {"er": None}]}},
    "y": {},
    "p": [{"role": "user", "content": "Hi", "n": 2}, {"role": "tool", "content": None}, {"role": "User", "content": "b", "n": 1}],
}
ATOMS = [
    *VALUES,
    *("0", "1", "2", "3.0", "1e3", "0.1", "true", "false", "none", "''", "'a'", "'l'", '"it\'s"', "'a,b,,c'"),
    *("[]", "[1,2,3]", "('a',)", "(1,'x',none)", "{}", "{'a': 1, 2: 'b'}", "missing", "d.missing", "range(4)", "'%s-%d'"),
    *("d.items()", "d.values()", "'\\u00e9\\n'", "'{} {x}'", "16", "'3.7'", "'12'", "[[1,2],[3]]"),
]
FILTERS = [
    *("trim", "length", "upper", "lower", "title", "capitalize", "first", "last", "list", "string", "int", "float", "abs"),
    *("join", "join(', ')", "join('-', attribute='role')", "replace('l', 'L')", "replace('', '.')", "replace('a', 'bb', 1)"),
    *("default('D')", "default('D', true)", "d(1)", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)"),
    *("tojson(separators=(',', ':'))", "unique|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "reverse", "reverse|list"),
    *("min", "max", "sum", "count", "items|list", "dictsort", "dictsort(by='value')", "dictsort(reverse=true)", "safe", "e"),
    *("indent", "indent(2, true)", "indent(3, blank=true)", "map('upper')|list", "map(attribute='role')|list", "map('length')|list"),
    *("map(attribute='n', default=0)|list", "select|list", "reject|list", "select('string')|list", "reject('none')|list"),
    *("selectattr('n')|list", "selectattr('role', 'equalto', 'user')|list", "rejectattr('n', 'defined')|list", "select('odd')|list"),
    *("batch(2)|list", "batch(3, 0)|list", "slice(2)|list", "round", "round(1)", "round(method='floor')", "center(9)", "wordcount"),
    *("urlencode", "truncate(5)", "truncate(6, true, '')", "groupby('role')", "sort(attribute='n')", "attr('upper') is defined", "format(1, 2)"),
]
TESTS = [
    *("defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true"),
    *("false", "odd", "even", "divisibleby 3", "in [1, 'a', none]", "eq 1", "ne 'a'", "lt 3", "ge 2", "equalto('a')", "lower", "upper"),
    *("sameas none", "callable", "escaped", "filter", "test", "in 'Hello'", "> 1"),
]
METHODS = [
    *("strip()", "lstrip()", "rstrip()", "strip('ao ')", "split()", "split(',')", "split('l', 1)", "rsplit('l', 1)", "rsplit(None, 1)"),
    *("startswith('H')", "endswith(('d', 'e'))", "upper()", "lower()", "title()", "capitalize()", "replace('l', '1')", "find('l')"),
    *("rfind('l')", "count('l')", "join(['a', 'b'])", "splitlines()", "splitlines(true)", "partition(',')", "rpartition('l')", "isdigit()"),
    *("isalpha()", "isupper()", "islower()", "istitle()", "isspace()", "isalnum()", "zfill(9)", "center(9, '*')", "ljust(8)", "rjust(8, '.')"),
    *("swapcase()", "removeprefix('He')", "removesuffix('d')", "format(1, x=2)", "get('name')", "get('q', 5)", "items()", "keys()", "values()"),
    *("items()|list", "copy()", "count(1)", "index('a')", "append(1)", "name", "age", "tags", "nested.deep", "nested.deep[1].er", "0", "format", "pop()"),
]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, choices):
        return self.random.choice(choices)

    def expression(self, depth):
        if depth == 0:
            return self.pick(ATOMS)
        kind = self.random.randrange(12)
        inner = self.expression(depth - 1)
        if kind < 3:
            return f"({inner})|{self.pick(FILTERS)}"
        if kind < 5:
            return f"({inner}).{self.pick(METHODS)}"
        if kind == 5:
            return f"({inner}) is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind < 9:
            return f"({inner}) {self.pick(BINARY)} ({self.expression(depth - 1)})"
        if kind == 9:
            bounds = [self.pick(["", "1", "-1", "2", "-3", "9", "none", "0"]) for _ in range(3)]
            # Jinja folds slices of constants, and then is silent about what cannot be sliced.
            return f"{self.pick(list(VALUES))}[{':'.join(bounds[: self.pick([2, 3])])}]"
        if kind == 10:
            return f"({inner})[{self.pick(['0', '1', '-1', '9', chr(39) + 'name' + chr(39), 'i', 'none', 'true', '1.0'])}]"
        return self.pick(
            [
                f"({inner} if {self.expression(depth - 1)} else {self.expression(depth - 1)})",
                f"({inner} if {self.expression(depth - 1)})",
                f"(not ({inner}))",
                f"-({inner})",
                f"[{inner}, {self.expression(depth - 1)}]",
                f"{{'k': {inner}}}",
                f"dict(a={inner})",
                f"namespace(a={inner}).a",
                f"1 < ({inner}) < 9",
                f"range({inner})|list",
            ]
        )

    def template(self):
        expression = self.expression(self.pick([1, 1, 2, 2, 3]))
        form = self.random.randrange(10)
        if form < 6:
            return f"{{{{ {expression} }}}}"
        space = self.pick(["", " ", "\n", " \n ", "\n\n"])
        left, right = self.pick(["", "-", "+"]), self.pick(["", "-"])
        open_, close = "{%" + left, right + "%}"
        other = self.expression(1)
        return self.pick(
            [
                f"{{% for a in {expression} %}}{space}{open_} if loop.first {close}{space}[{{{{ a }}}}]{open_} endif {close}{space}{{{{ loop.index }}}}/{{{{ loop.revindex0 }}}}{{% else %}}none{{% endfor %}}",
                f"{{% for a in {expression} if a %}}{{{{ loop.length }}}}{{{{ loop.previtem }}}}{{{{ a }}}}{open_} if not loop.last {close},{open_} endif {close}{{% endfor %}}",
                f"{open_} set v = {expression} {close}{space}{{{{- v -}}}}{space}{open_} set v {close}{space}{other}{space}{open_} endset {close}{{{{ v }}}}",
                f"{space}{open_} if {expression} {close}{space}yes{space}{open_} elif {other} {close}{space}maybe{open_} else {close}{space}no{space}{open_} endif {close}{space}end",
                f"{open_} macro f(a, b={other}) {close}{space}{{{{ a }}}}:{{{{ b }}}}{space}{open_} endmacro {close}{{{{ f({expression}) }}}}{{{{ f(b=1, a={other}) }}}}",
                f"{{% set q = namespace(c=0) %}}{{% for a in {expression} %}}{{% set q.c = q.c + 1 %}}{{% if q.c > 2 %}}{{% break %}}{{% endif %}}{{{{ a }}}};{{% endfor %}}{{{{ q.c }}}}",
                f"a {{#{left} note {right}#}}{space}{{{{{left if left == '-' else ''} {expression} {right}}}}}{space}b",
                f"{{% for k, v in ({expression}).items() %}}{{{{ k }}}}={{{{ v }}}}{open_} continue {close}x{{% else %}}e{{% endfor %}}",
                f"{{% set a, b = {expression} %}}{{{{ a }}}}|{{{{ b }}}}",
                f"{{% filter upper %}}{space}{{{{ {expression} }}}}{space}{{% endfilter %}}{{% with h = {other} %}}{{{{ h }}}}{{% endwith %}}{{{{ h }}}}",
            ]
        )
