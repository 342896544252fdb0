"""Writes goldens/chat: what the oracle makes of conversations by chat templates, and of random small templates.

conversations.json   a record per conversation: `name`, `messages`, and `arguments` of apply_chat_template
<family>.json        a record per conversation, rendered by chat_templates/<family>.jinja: `text`; or `error`, the message
                     that the template raises (true where the oracle raises something of its own)
expressions.json     `values`, and random templates over them (chat_expressions.py), as above

The templates are the tests' own; they are made as those of the families are. The time is chat_oracle.NOW.
"""

import copy
import warnings

import chat_conversations
import chat_expressions
import chat_oracle
import common
import jinja2
from transformers.utils import chat_template_utils

CHAT = common.GOLDENS / "chat"
SCRIPTS = [common.HERE / name for name in ("chat_conversations.py", "chat_expressions.py", "chat_oracle.py")] + [__file__]
# Of random templates, so many that render and so many that fail.
RENDERED, FAILED = 2000, 500


def compact(outcome):
    """Keeps the messages that templates raise themselves."""
    error = outcome.pop("exception", None)
    if error is not None:
        outcome["error"] = outcome["error"] if type(error) is jinja2.exceptions.TemplateError else True
    return outcome


def write_conversations():
    cases = [
        {"name": name, "messages": messages, "arguments": arguments}
        for name, messages, arguments in chat_conversations.conversations()
    ]
    common.write_json(CHAT / "conversations.json", {"made_with": common.made_with(*SCRIPTS), "cases": cases})


def write_family(path):
    tokenizer = chat_oracle.make_tokenizer()
    template = path.read_text()
    cases = []
    for name, messages, arguments in chat_conversations.conversations():
        cases.append({"name": name, **compact(chat_oracle.render(tokenizer, template, messages, **arguments))})
    document = {"made_with": common.made_with(*SCRIPTS, path), "cases": cases}
    common.write_json(CHAT / f"{path.stem}.json", document)


def write_expressions():
    maker = chat_expressions.Maker(seed=5)
    cases = {"text": [], "error": []}
    while len(cases["text"]) < RENDERED:
        template = maker.template()
        # Some filters change what they are given ("indent" of a list).
        values = copy.deepcopy(chat_expressions.VALUES)
        outcome = compact(
            chat_oracle.guarded(
                lambda: chat_template_utils._compile_jinja_template(template).render(**values)
            )
        )
        kind = "text" if "text" in outcome else "error"
        # Addresses of objects are no result.
        if " at 0x" not in outcome.get("text", ""):
            cases[kind].append({"template": template, **outcome})
    cases = cases["text"] + cases["error"][:FAILED]
    document = {"made_with": common.made_with(*SCRIPTS), "values": chat_expressions.VALUES, "cases": cases}
    common.write_json(CHAT / "expressions.json", document)


def main():
    common.set_up()
    warnings.simplefilter("ignore", SyntaxWarning)
    write_conversations()
    for path in sorted((common.HERE / "chat_templates").glob("*.jinja")):
        write_family(path)
    write_expressions()


if __name__ == "__main__":
    main()
