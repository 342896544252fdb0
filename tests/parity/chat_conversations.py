"""The conversations that chat templates are tried on: messages, and what else is passed to apply_chat_template."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A city's name, e.g. \"K\u00f6ln\""},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "integer", "minimum": 1},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "It's <the> time & date.", "parameters": {"type": "object", "properties": {}}},
}
RETURNS = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"values": {"type": "array", "items": {"type": "number"}}, "exact": {"type": ["boolean", "null"]}},
        },
        "return": {"type": "number"},
    },
}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, identifier=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if identifier is None else {"id": identifier, **made}


def result(text, identifier=None, **more):
    made = {"role": "tool", "content": text, **more}
    return made if identifier is None else {**made, "tool_call_id": identifier}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


IMAGE = {"type": "image", "url": "cat.png"}
PAIR = [user("Hi"), assistant("Hello!")]
CALLED = [
    user("Is it raining in K\u00f6ln?"),
    assistant("", tool_calls=[call("get_weather", {"place": "K\u00f6ln", "days": 2}, "abcdef123")]),
    result('{"rain": true, "mm": 1.5}', "abcdef123", name="get_weather"),
]
THOUGHT = assistant("<think>\nLet me see. 2 + 2\n\nis 4.\n</think>\n\nIt is 4.")


def conversations():
    """(name, messages, keyword arguments)."""
    prompt = {"add_generation_prompt": True}
    tools = {"tools": [WEATHER, CLOCK], **prompt}
    return [
        ("user", [user("Hello")], {}),
        ("user_prompt", [user("Hello")], prompt),
        ("system_user", [system("Be brief."), user("Hello")], prompt),
        ("system_alone", [system("Be brief.")], prompt),
        ("assistant_alone", [assistant("Hello")], {}),
        ("pair", PAIR, {}),
        ("pair_prompt", PAIR, prompt),
        ("three_turns", [*PAIR, user("How are you?")], prompt),
        ("five_turns", [system("You rhyme."), *PAIR, user("Why?"), assistant("Because."), user("Oh.")], prompt),
        ("seven_turns", [*PAIR, *PAIR, *PAIR, user("Again?")], prompt),
        ("continue_final", [user("Count"), assistant("One, two,")], {"continue_final_message": True}),
        ("continue_space", [user("Count"), assistant(" One, two, ")], {"continue_final_message": True}),
        ("continue_parts", [user("Count"), assistant(parts("One,", "two"))], {"continue_final_message": True}),
        ("continue_user", [*PAIR, user("I was about to")], {"continue_final_message": True}),
        ("empty_user", [user("")], prompt),
        ("empty_system", [system(""), user("Hello")], prompt),
        ("empty_assistant", [user("Hello"), assistant(""), user("?")], prompt),
        ("blank_user", [user("   ")], prompt),
        ("spaces", [system("  a \n"), user("\n\n b\t"), assistant(" c "), user("\u00a0d\u2003")], prompt),
        ("multi_line", [user("one\n  two\n\nthree\r\nfour\n"), assistant("x\ny"), user("\tz")], prompt),
        ("unicode", [system("\u00c7a va \u00e9t\u00e9"), user("\u4f60\u597d \U0001f600 \U0001f469\u200d\U0001f680"), assistant("\u00bfQu\u00e9? \u0645\u0631\u062d\u0628\u0627")], prompt),
        ("combining", [user("e\u0301 \u1e9e \u00df \ufb01 \u0130"), assistant("\u03a3\u0391\u03a3")], {}),
        ("quotes", [user("He said \"it's\" \\ `x`"), assistant("'\"'")], prompt),
        ("markup", [user("<b>&amp;</b> {{ x }} {% if %} {# no #}"), assistant("<|im_end|></s>")], prompt),
        ("special_text", [user("<|im_start|>system\n[INST] <start_of_turn> <|eot_id|>")], prompt),
        ("control_characters", [user("a\u0000b\u001fc\u007fd\u0085e")], prompt),
        ("long", [user("word " * 60), assistant("again " * 40), user("end")], prompt),
        ("two_users", [user("a"), user("b")], prompt),
        ("two_assistants", [user("a"), assistant("b"), assistant("c")], prompt),
        ("assistant_first", [assistant("a"), user("b")], prompt),
        ("system_later", [user("a"), system("b"), user("c")], prompt),
        ("two_systems", [system("a"), system("b"), user("c")], prompt),
        ("unknown_role", [user("a"), {"role": "critic", "content": "b"}, user("c")], prompt),
        ("developer_role", [{"role": "developer", "content": "Obey."}, user("a")], prompt),
        ("upper_role", [{"role": "User", "content": "a"}], prompt),
        ("missing_content", [user("a"), {"role": "assistant"}], prompt),
        ("null_content", [user("a"), {"role": "assistant", "content": None, "tool_calls": None}], prompt),
        ("extra_fields", [{"role": "user", "content": "a", "name": "Ada", "weight": 0.5}], prompt),
        ("parts", [user(parts("One. ", "Two."))], prompt),
        ("parts_system", [system(parts("Be brief.")), user(parts("Hi")), assistant(parts("Ho"))], prompt),
        ("parts_image", [user([IMAGE, *parts("What is it?")])], prompt),
        ("parts_images", [user([*parts("Which?"), IMAGE, IMAGE]), assistant("Both."), user([IMAGE])], prompt),
        ("parts_empty", [user([])], prompt),
        ("number_content", [user(7)], prompt),
        ("tools_unused", [user("Hello")], tools),
        ("tools_system", [system("Use tools."), user("Hello")], tools),
        ("tools_empty", [user("Hello")], {"tools": [], **prompt}),
        ("tool_return", [user("1+2?")], {"tools": [RETURNS], **prompt}),
        ("tool_call", CALLED[:2], {"tools": [WEATHER]}),
        ("tool_result", CALLED, tools),
        ("tool_answer", [system("Use tools."), *CALLED, assistant("Yes, 1.5 mm."), user("Thanks")], tools),
        ("tool_without_list", CALLED, prompt),
        ("tool_content", [user("a"), assistant("I look.", tool_calls=[call("now", {}, "000000001")]), result("12:00", "000000001")], tools),
        (
            "tool_two_calls",
            [
                user("Both"),
                assistant("", tool_calls=[call("now", {}, "000000001"), call("get_weather", {"place": "A \"B\""}, "000000002")]),
                result("12:00", "000000001"),
                result("dry", "000000002"),
            ],
            tools,
        ),
        ("tool_text_arguments", [user("a"), assistant("", tool_calls=[call("now", '{"zone": "UTC"}', "000000001")])], tools),
        ("tool_no_id", [user("a"), assistant("", tool_calls=[call("now", {"deep": {"list": [1, None, True, 0.1]}})]), result("x")], tools),
        ("tool_short_id", [user("a"), assistant("", tool_calls=[call("now", {}, "1")]), result("x", "1")], tools),
        ("tool_object_result", [user("a"), assistant("", tool_calls=[call("now", {}, "000000001")]), result({"ok": True}, "000000001")], tools),
        ("tool_parts_result", [user("a"), assistant("", tool_calls=[call("now", {}, "000000001")]), result(parts("x", "y"), "000000001")], tools),
        ("ipython_role", [user("a"), {"role": "ipython", "content": "3"}], prompt),
        ("builtin_tools", [user("a")], {"builtin_tools": ["brave_search", "code_interpreter"], **prompt}),
        ("date_given", [user("a")], {"date_string": "1 Jan 2020", **prompt}),
        ("tools_in_system", [system("s"), user("a")], {"tools_in_user_message": False, **tools}),
        ("thinking", [user("2+2?"), THOUGHT], {}),
        ("thinking_turns", [user("2+2?"), THOUGHT, user("And 3+3?")], prompt),
        ("thinking_field", [user("2+2?"), assistant("4", reasoning_content="Add.")], {}),
        ("thinking_old_field", [user("2+2?"), assistant("4", thinking="Add."), user("?")], prompt),
        ("thinking_tool", [user("a"), assistant("<think>\nuse it\n</think>\n\n", tool_calls=[call("now", {}, "000000001")]), result("12", "000000001")], tools),
        ("thinking_on", [user("2+2?")], {"enable_thinking": True, **prompt}),
        ("thinking_off", [user("2+2?")], {"enable_thinking": False, **prompt}),
        ("thinking_unclosed", [user("a"), assistant("<think>hm"), user("b")], prompt),
        ("documents", [user("a")], {"documents": [{"title": "T", "text": "x"}], **prompt}),
        ("own_bos", [user("a")], {"bos_token": "<BOS>", **prompt}),
    ]
