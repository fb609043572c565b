//! Tests of the parser of models' output, with each format, with pieces of any size, and with
//! arbitrary text.

use ixc_text::chat::format::{FORMATS, find};
use ixc_text::chat::{Answer, Format, Parser, Part, TextParameters, format_of};
use proptest::prelude::*;

fn format(name: &str) -> &'static Format {
    find(name).unwrap_or_else(|| panic!("no format {name}"))
}

/// Tools without parameters.
const TOOLS: &str = r#"[{"function": {"name": "f"}}, {"function": {"name": "g"}}]"#;

/// Returns a parser for an answer to this prompt. The answer may call the tools above.
fn parser_of(format: &'static Format, prompt: &str) -> Parser {
    Parser::new(format, prompt).with_texts(TextParameters::of_tools(TOOLS))
}

/// Parses a text that arrives in pieces. Returns the answer.
fn parse<'t>(parser: Parser, pieces: impl IntoIterator<Item = &'t str>) -> Answer {
    let (mut parser, mut answer) = (parser, Answer::default());
    for piece in pieces {
        answer.extend(parser.push(piece));
    }
    answer.extend(parser.finish());
    answer
}

/// Test case: name of the format, end of the prompt, and output of the model, then the expected
/// parts. These are the reasoning, the content, and each call as `id name arguments`.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("harmony", "<|end|><|start|>assistant",
     "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>\
      <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"<|x|> Paris\"}<|call|>",
     "Need weather.", "Let me look.", &["call_0 get_weather {\"city\": \"<|x|> Paris\"}"]),
    // The output is as the template writes it, but without the token that ends the answer.
    ("harmony", "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{\"a\":1}", "", "", &["call_0 f {\"a\":1}"]),
    ("harmony", "<|start|>assistant", "<|channel|>final<|message|>Hi <|there\n", "", "Hi <|there\n", &[]),
    ("harmony", "<|start|>assistant", "Hello, world", "", "Hello, world", &[]),
    ("harmony", "<|start|>assistant",
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>",
     "a\nb", "c", &[]),
    // The arguments are Python code, not JSON, so this is not a call.
    ("harmony", "<|start|>assistant", "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
     "", "<|channel|>analysis to=python code<|message|>print(1)<|call|>", &[]),
    ("muse-glimmer", "<|start|>assistant",
     " to=self<|message|>Hm <|x|>.<|eom|><|start|>assistant to=user<|message|>One moment.<|eom|><|start|>assistant to=weather.get<|message|><atem:function_calls>\n\
      <atem:invoke name=\"weather.get\">\n<atem:parameter name=\"city\">Paris</atem:parameter>\n<atem:parameter name=\"days\">[1, 2]</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>\
      <|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke name=\"now\">\n</atem:invoke>\n</atem:function_calls><|eot|>",
     "Hm <|x|>.", "One moment.", &["call_0 weather.get {\"city\": \"Paris\", \"days\": [1, 2]}", "call_1 now {}"]),
    // The token that ends the answer is missing here, and the message to a recipient is no call.
    ("muse-glimmer", "<|start|>assistant", " to=user<|message|>Hi <|there\n", "", "Hi <|there\n", &[]),
    ("muse-glimmer", "<|start|>assistant", " to=self<|message|>So", "So", "", &[]),
    ("muse-glimmer", "<|start|>assistant", " to=f<|message|>print(1)<|eot|>", "", "to=f<|message|>print(1)<|eot|>", &[]),
    ("qwen3", "<|im_start|>assistant\n",
     "<think>\nHm.\n\nYes.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.50], \"y\": \"</tool_call>\"}}\n</tool_call>\n\
      <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     "Hm.\n\nYes.", "One moment.", &["call_0 f {\"x\": [1, 2.50], \"y\": \"</tool_call>\"}", "call_1 g {}"]),
    ("qwen3", "<|im_start|>assistant\n<think>\n", "In thought", "In thought", "", &[]),
    ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "  No <think thought </think>?\n", "", "  No <think thought </think>?\n", &[]),
    // The arguments are in a string here, and the end marker of the call is missing.
    ("qwen3", "", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}", "", "", &["call_0 f {\"a\": 1}"]),
    // The first two are not calls. They become content, and the text around them is kept. The last
    // is a call.
    ("qwen3", "", "a <tool_call>{broken}</tool_call> b <tool_call>{\"name\": 1}</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>",
     "", "a <tool_call>{broken}</tool_call> b <tool_call>{\"name\": 1}</tool_call>", &["call_0 f {}"]),
    // The first call is of a known tool, so its arguments are streamed, and it stays a call without
    // its end. The second is of no known tool, so it becomes text.
    ("qwen3", "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut </tool_call> off", "", "", &["call_0 f {\"a\": \"cut </tool_call> off"]),
    ("qwen3", "", "<tool_call>{\"name\": \"h\", \"arguments\": {\"a\": \"cut </tool_call> off", "",
     "<tool_call>{\"name\": \"h\", \"arguments\": {\"a\": \"cut </tool_call> off", &[]),
    // The last bracket of the call's object is missing.
    ("qwen3", "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>b", "", "b", &["call_0 f {\"a\": 1}"]),
    // The quotation mark that is not closed does not hide the next call.
    ("qwen3", "", "<tool_call>{\"name\": \"f</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
     "", "<tool_call>{\"name\": \"f</tool_call>", &["call_0 g {}"]),
    ("qwen3-coder", "<think>\n",
     "plan</think>\n\nOK\n\n<tool_call>\n<function=edit>\n<parameter=path>\na.rs\n</parameter>\n<parameter=text>\n  </parameter> \"x\"\n</tool_call>\n\n</parameter>\n\
      <parameter=line>\n12\n</parameter>\n<parameter=at>\n{\"a\": [true]}\n</parameter>\n</function>\n</tool_call>",
     "plan", "OK",
     &["call_0 edit {\"path\": \"a.rs\", \"text\": \"  </parameter> \\\"x\\\"\\n</tool_call>\\n\", \"line\": 12, \"at\": {\"a\": [true]}}"]),
    ("qwen3-coder", "", "<tool_call>\n<function=f>\n<parameter=a>\n<![CDATA[x]]>\n</parameter>\n</function>\n</tool_call>", "", "", &["call_0 f {\"a\": \"<![CDATA[x]]>\"}"]),
    ("qwen3-coder", "", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", "", &["call_0 now {}"]),
    ("seed-oss", "", "<seed:think>t</seed:think>c<seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>",
     "t", "c", &["call_0 f {\"a\": 1}"]),
    ("glm4.5", "<|assistant|>",
     "\n<think>t</think>\nSure.\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
     "t", "Sure.", &["call_0 get {\"city\": \"北京\", \"days\": 3}"]),
    ("glm4.5", "", "<tool_call>now</tool_call>", "", "", &["call_0 now {}"]),
    ("glm4.5", "", "<tool_call>no", "", "<tool_call>no", &[]),
    ("minimax-m2", "]~b]ai\n<think>\n",
     "t\n</think>\n\nc\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"q\">a \"b\"</parameter>\n<parameter name=\"n\">[1]</parameter>\n</invoke>\n\
      <invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "t", "c", &["call_0 f {\"q\": \"a \\\"b\\\"\", \"n\": [1]}", "call_1 g {}"]),
    // A call that is not in a section of calls is text.
    ("minimax-m2", "", "write <invoke name=\"f\"></invoke>", "", "write <invoke name=\"f\"></invoke>", &[]),
    ("kimi-k2", "<|im_assistant|>assistant<|im_middle|>",
     "<think>t</think>c<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"a\": \"b\"}<|tool_call_end|>\
      <|tool_call_begin|>functions.put:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "t", "c", &["functions.get:0 get {\"a\": \"b\"}", "functions.put:1 put {}"]),
    ("kimi-k3", "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>",
     "t<|close|>think<|sep|><|open|>response<|sep|>c<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>\
      <|open|>argument key=\"a\" type=\"string\"<|sep|>1<|close|>argument<|sep|><|open|>argument key=\"b\" type=\"array\"<|sep|>[1, \"x\"]<|close|>argument<|sep|><|close|>call<|sep|>\
      <|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
     "t", "c", &["call_0 f {\"a\": \"1\", \"b\": [1, \"x\"]}", "call_1 g {}"]),
    ("kimi-k3", "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>", "c<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", "", "c", &[]),
    ("deepseek-v3.1", "<｜Assistant｜></think>",
     "c<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "", "c", &["call_0 f {\"a\": 1}", "call_1 g {}"]),
    ("deepseek-r1", "<｜Assistant｜><think>\n",
     "t\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "t", "", &["call_0 f {\"a\": 1}"]),
    ("dsml", "<｜Assistant｜><think>",
     "t</think>c\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>\n\
      <｜DSML｜parameter name=\"b\" string=\"false\">\"x\"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "t", "c", &["call_0 f {\"a\": \"1\", \"b\": \"x\"}"]),
    ("dsml", "", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "", "", &["call_0 f {}"]),
    ("minimax-m3", "]~b]ai\n<mm:think>",
     "t</mm:think>c]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<q>a <b>]<]minimax[>[</q>]<]minimax[>[<l>\n]<]minimax[>[<item>1]<]minimax[>[</item>\
      ]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</l>]<]minimax[>[<o>]<]minimax[>[<k>true]<]minimax[>[</k>]<]minimax[>[</o>]<]minimax[>[</invoke>\n\
      ]<]minimax[>[<invoke name=\"g\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
     "t", "c", &["call_0 f {\"q\": \"a <b>\", \"l\": [1, \"x\"], \"o\": {\"k\": true}}", "call_1 g {}"]),
    ("solar-open", "<|begin|>assistant",
     "<|think|>t<|end|><|begin|>assistant<|content|>c<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>f<|tool_call:args|>{\"a\": 1}<|tool_call:end|><|calls|>",
     "t", "c", &["abc f {\"a\": 1}"]),
    ("command-a", "<|CHATBOT_TOKEN|>",
     "<|START_THINKING|>t<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}},\n {\"tool_name\": \"g\"}]<|END_ACTION|>",
     "t", "", &["0 f {\"a\": 1}", "call_1 g {}"]),
    ("command-a", "", "<|START_RESPONSE|>c<|END_RESPONSE|>", "", "c", &[]),
    ("firefunction-v2", "", "Hm. functools[{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]", "", "Hm.", &["call_0 f {\"a\": \"]\"}"]),
    ("firefunction-v2", "", "functools[{\"name\": \"reduce\"}]", "", "functools[{\"name\": \"reduce\"}]", &[]),
    ("command-r", "", "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"a\": \"```\"}\n    },\n {\"tool_name\": \"g\"}\n]\n```",
     "", "", &["call_0 f {\"a\": \"```\"}", "call_1 g {}"]),
    ("command-r", "", "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```", "",
     "Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```", &[]),
    ("llama3", "", "{\"name\": \"f\", \"parameters\": {}};\n{\"name\": \"g\", \"parameters\": {\"a\": 1}};\n", "", "", &["call_0 f {}", "call_1 g {\"a\": 1}"]),
    ("llama3", "", "{\"name\": \"f\", \"parameters\": {}},", "", "", &["call_0 f {}"]),
    ("lfm2", "", "c<|tool_call_start|>[f(a=\"it's\\n\\\"\", b=-1.5, c=[True, None, {'k': 'v',},], d={}), g()]<|tool_call_end|>d", "", "c\nd",
     &["call_0 f {\"a\": \"it's\\n\\\"\", \"b\": -1.5, \"c\": [true, null, {\"k\": \"v\"}], \"d\": {}}", "call_1 g {}"]),
    ("lfm2", "", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>", "", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>", &[]),
    ("nemotron-nano", "<think>\n", "t</think>c<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"</TOOLCALL>\"}}]</TOOLCALL>",
     "t", "c", &["call_0 f {\"a\": \"</TOOLCALL>\"}"]),
    ("granite3", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "", "", &["call_0 f {\"a\": 1}"]),
    ("gemma4", "<|turn>model\n",
     "<|channel>thought\nt\n<channel|>c<|tool_call>call:f{city:<|\"|>Par{is}, \"x\"<|\"|>,n:1,on:true,l:[<|\"|>a<|\"|>,2],o:{<|\"|>k<|\"|>:null},e:[]}<tool_call|>\
      <|tool_call>call:g{}<tool_call|>",
     "t", "c", &["call_0 f {\"city\": \"Par{is}, \\\"x\\\"\", \"n\": 1, \"on\": true, \"l\": [\"a\", 2], \"o\": {\"k\": null}, \"e\": []}", "call_1 g {}"]),
    ("gemma4", "", "<|tool_call>call:f{a:<|\"|>cut", "", "<|tool_call>call:f{a:<|\"|>cut", &[]),
    ("mistral", "[/INST]", "[THINK]t[/THINK]c[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}",
     "t", "c", &["2FNY3GPcJ f {\"a\": \"[TOOL_CALLS]\"}", "abc123def g {}"]),
    ("mistral", "[/INST]", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, {\"name\": \"g\", \"arguments\": {}}]",
     "", "", &["2FNY3GPcJ f {\"a\": 1}", "eqWhUYwf2 g {}"]),
    // The id that the model wrote is used only if it is before the arguments, which are streamed.
    ("mistral", "[/INST]", "[TOOL_CALLS] [{\"id\": \"x\", \"name\": \"f\", \"arguments\": {\"a\": 1}}]", "", "", &["x f {\"a\": 1}"]),
    ("hy3", "<think:opensource>",
     "t</think:opensource>c<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n\
      <arg_value:opensource>x</arg_value:opensource>\n<arg_key:opensource>b</arg_key:opensource>\n<arg_value:opensource>[1, null]</arg_value:opensource>\n\
      </tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
     "t", "c", &["call_0 f {\"a\": \"x\", \"b\": [1, null]}", "call_1 g {}"]),
    ("minicpm3", "", "<|thought_start|>\nt\n<|thought_end|>\n<|tool_call_start|>\n```python\nf(a=\"x\\u00e9\\x41\",b={\"z\": [1.5, true]})\ng()\n```\n<|tool_call_end|>\nc",
     "t", "c", &["call_0 f {\"a\": \"xéA\", \"b\": {\"z\": [1.5, true]}}", "call_1 g {}"]),
    ("olmo3", "", "<function_calls>\nf(a='x', b=None)\ng()\n</function_calls>", "", "", &["call_0 f {\"a\": \"x\", \"b\": null}", "call_1 g {}"]),
    ("olmo3", "", "c<function_calls>\nf(a='x') and more\n</function_calls>", "", "c<function_calls>\nf(a='x') and more\n</function_calls>", &[]),
    ("apertus", "", "<|inner_prefix|>t<|inner_suffix|>c<|tools_prefix|>[{\"f\": {\"a\": \"<|tools_suffix|>\"}}, {\"g\": {}}]<|tools_suffix|>",
     "t", "c", &["call_0 f {\"a\": \"<|tools_suffix|>\"}", "call_1 g {}"]),
    ("gigachat3.1", "", "c<|function_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "", "c", &["call_0 f {\"a\": 1}"]),
    ("gigachat3", "", "c<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "", "c", &["call_0 f {\"a\": 1}"]),
    ("gigachat3", "", "function call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}", "", "", &["call_0 f {}"]),
    ("phi4-mini", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>", "", "",
     &["call_0 f {\"a\": 1}", "call_1 g {}"]),
    ("apriel", "Here are my reasoning steps:\n", "t\n[BEGIN FINAL RESPONSE]\nc\n[END FINAL RESPONSE]\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>",
     "t", "c", &["call_0 f {}"]),
    ("hunyuan", "", "<think>\nt\n</think>\n<answer>\nc\n</answer>", "t", "c", &[]),
    ("hunyuan", "", "<think>\nt\n</think>\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</tool_calls>", "t", "", &["call_0 f {\"a\": 1}"]),
    ("tool-calls", "<think>\n", "t</think>c<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_calls>\"}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
     "t", "c", &["call_0 f {\"a\": \"</tool_calls>\"}", "call_1 g {}"]),
    ("minicpm5", "<think>\n", "t</think><function name=\"f\"><param name=\"a\"><![CDATA[<b> </param>\n1]]></param><param name=\"n\">2</param></function>\n<function name=\"g\"></function>",
     "t", "", &["call_0 f {\"a\": \"<b> </param>\\n1\", \"n\": 2}", "call_1 g {}"]),
    ("functionary-v3.1", "", "c<function=f>{\"a\": \"</function>\"}</function><function=g>{}</function>", "", "c", &["call_0 f {\"a\": \"</function>\"}", "call_1 g {}"]),
    // These are one object, several objects, and an object after the marker of built-in tools.
    ("llama3", "", " {\"name\": \"f\", \"parameters\": {\"a\": {\"b\": \"}\"}}}\n", "", "", &["call_0 f {\"a\": {\"b\": \"}\"}}"]),
    ("llama3", "", "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": 1}}", "", "",
     &["call_0 f {}", "call_1 g {\"a\": 1}"]),
    ("llama3", "", "<|python_tag|>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}", "", "", &["call_0 f {}"]),
    ("llama3", "", "<|python_start|><|python_end|>{\"name\": \"f\", \"parameters\": {}}", "", "", &["call_0 f {}"]),
    // Objects that name no tool, or that are not at the beginning, are answers.
    ("llama3", "", "{\"name\": \"Ann\", \"age\": 3}", "", "{\"name\": \"Ann\", \"age\": 3}", &[]),
    ("llama3", "", "{\"name\": \"f\"} is one.\n", "", "{\"name\": \"f\"} is one.\n", &[]),
    ("llama3", "", "See {\"name\": \"f\", \"parameters\": {}}", "", "See {\"name\": \"f\", \"parameters\": {}}", &[]),
    ("llama3", "", "{\"name\": \"f\", \"parameters\": {\"a\": \"cut", "", "", &["call_0 f {\"a\": \"cut"]),
    ("hammer", "", "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]", "", "", &["call_0 f {\"a\": 1}", "call_1 g {}"]),
    ("hammer", "", "[]", "", "[]", &[]),
    ("pythonic", "", "[f(a='x', b=[True]), g()]", "", "", &["call_0 f {\"a\": \"x\", \"b\": [true]}", "call_1 g {}"]),
    ("pythonic", "", "<|python_start|>[f(a=1)]<|python_end|>", "", "", &["call_0 f {\"a\": 1}"]),
    ("pythonic", "", "[h(a=1)] and [f](b)", "", "[h(a=1)] and [f](b)", &[]),
    // The first text has calls in sequence, and a `\n}` that ends an inner object. The second text
    // has no calls.
    ("generic", "", "{\"tool_call\":\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": \"\\n}\"\n}\n}}\n\n}\n{\"tool_call\":\n{\"name\": \"g\", \"arguments\": {}}\n\n}", "", "",
     &["call_0 f {\"a\": {\"b\": \"\\n}\"\n}\n}", "call_1 g {}"]),
    ("generic", "", "Yes: {\"tool_call\": 1\n} {\"tool\": 1}", "", "Yes: {\"tool_call\": 1\n} {\"tool\": 1}", &[]),
    ("generic-think", "<think>\n", "t</think>\n{\"tool_call\":\n{\"name\": \"f\", \"arguments\": {}}\n\n}", "t", "", &["call_0 f {}"]),
    ("think", "", "a<think>b</think>c<tool_call>", "b", "a\nc<tool_call>", &[]),
    ("plain", "", " <think>b</think>\n", "", " <think>b</think>\n", &[]),
];

fn shown(answer: &Answer) -> (&str, &str, Vec<String>) {
    let calls = answer.calls.iter().map(|call| format!("{} {} {}", call.id, call.name, call.arguments));
    (&answer.reasoning, &answer.content, calls.collect())
}

#[test]
fn each_chat_format_is_parsed() {
    for (name, prompt, text, reasoning, content, calls) in CASES {
        let answer = parse(parser_of(format(name), prompt), [*text]);
        let calls = calls.iter().map(|call| (*call).to_owned()).collect();
        assert_eq!(shown(&answer), (*reasoning, *content, calls), "{name}: {text}");
        let in_characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        assert_eq!(parse(parser_of(format(name), prompt), in_characters), answer, "{name} by characters: {text}");
    }
    let covered = |format: &Format| CASES.iter().any(|case| case.0 == format.name);
    assert!(FORMATS.iter().all(covered), "a format without a case");
}

/// Tests that a message that is cut at any position can be continued. Both parts together must have
/// the content of the whole message, without repetition.
#[test]
fn continued_messages_repeat_no_text() {
    for &(name, prompt, text, ..) in CASES {
        let parser = || parser_of(format(name), prompt);
        let Some(part) = parser().part() else { continue };
        let whole = parse(parser(), [text]);
        for (at, _) in text.char_indices() {
            let (before, behind) = text.split_at(at);
            let (parser, said) = parser().continuing(part, before);
            let open = parser.part();
            let rest = parse(parser, [behind]);
            let context = || format!("{name}: {before:?} and {behind:?} are {said:?} and {rest:?}, not {whole:?}");
            assert_eq!([&*said.calls, &*rest.calls].concat(), whole.calls, "{}", context());
            for (said, rest, whole) in
                [(&said.content, &rest.content, &whole.content), (&said.reasoning, &rest.reasoning, &whole.reasoning)]
            {
                let first =
                    whole.trim_start().strip_suffix(rest.trim_start()).unwrap_or_else(|| panic!("{}", context()));
                assert!(open.is_none() || said.trim_start().starts_with(first.trim_end()), "{}", context());
            }
        }
    }
    let (parser, said) = parser_of(format("harmony"), "").continuing(Part::Reasoning, "It ");
    let answer = parse(parser, ["is.", "<|end|><|start|>assistant<|channel|>final<|message|>Yes"]);
    assert_eq!((&*said.reasoning, &*answer.reasoning, &*answer.content), ("It ", "is.", "Yes"));
    // No line feed separates the continued text from earlier content, as it is not part of the
    // answer.
    let (parser, said) = parser_of(format("qwen3"), "").continuing(Part::Content, "Hi<think>so</think><th");
    let answer = parse(parser, ["e> b", "c"]);
    assert_eq!((&*said.content, &*said.reasoning, &*answer.content), ("Hi<th", "so", "e> bc"));
}

/// Tests that text is returned as soon as it cannot be the beginning of a marker.
#[test]
fn only_possible_markers_are_withheld() {
    let mut parser = parser_of(format("qwen3"), "");
    let mut said = |piece: &str| {
        let mut answer = Answer::default();
        answer.extend(parser.push(piece));
        answer.content + "|" + &answer.reasoning
    };
    assert_eq!(said("Hel"), "Hel|");
    assert_eq!(said("lo "), "lo|");
    assert_eq!(said("<b>"), " <b>|");
    assert_eq!(said(" <thi"), "|");
    assert_eq!(said("s"), " <this|");
    assert_eq!(said("<think"), "|");
    assert_eq!(said(">\n a"), "|a");
    assert_eq!(said("</"), "|");
    assert_eq!(said("p>"), "|</p>");
}

#[test]
fn every_format_has_a_call_form() {
    let names = ["plain", "think", "qwen3-coder", "gemma4", "qwen3", "harmony"];
    let expected = ["generic", "generic-think", "generic-think", "generic-think", "qwen3", "harmony"];
    assert_eq!(names.map(|name| format(name).for_calls().name), expected);
    assert_ne!(format_of("").name, "generic");
    for format in FORMATS {
        let own = format.for_calls();
        // For formats that have no calls, or whose arguments are not JSON, another format is used.
        let is_own = own.name == format.name;
        assert!(is_own || own.name.starts_with("generic"), "{}", own.name);
        assert_eq!(is_own, format.has_headers() || format.call_frame("f").is_some(), "{}", format.name);
        assert!(format.has_headers() || own.call_frame("f").is_some(), "{}", format.name);
    }
}

/// Tests that the value of a parameter stays a string if its schema is that of a string, even if it
/// looks like a number.
#[test]
fn string_schemas_keep_parameters_as_text() {
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
        {"zip": {"type": "string"}, "n": {"type": "integer"}}}}}, 7]"#;
    let glm = "<tool_call>f<arg_key>zip</arg_key><arg_value>01234</arg_value><arg_key>n</arg_key><arg_value>5</arg_value></tool_call>";
    let coder = "<tool_call><function=f><parameter=zip>1</parameter><parameter=n>5</parameter></function></tool_call>";
    for (name, text, expected) in
        [("glm4.5", glm, r#"{"zip": "01234", "n": 5}"#), ("qwen3-coder", coder, r#"{"zip": "1", "n": 5}"#)]
    {
        let parser = parser_of(format(name), "").with_texts(TextParameters::of_tools(tools)).numbered_from(7);
        let answer = parse(parser, [text]);
        assert_eq!((&*answer.calls[0].id, &*answer.calls[0].arguments), ("call_7", expected));
    }
    assert!(parse(parser_of(format("glm4.5"), ""), [glm]).calls[0].arguments.contains("\"01234\""), "not JSON");
}

/// Tests values in tags, which templates and models write in Python's syntax, too.
#[test]
fn tag_values_follow_their_schemas() {
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
        {"on": {"type": "boolean"}, "o": {"type": ["object", "null"]}, "n": {"type": "number"}, "s": {"type": ["string", "null"]},
         "e": {"enum": ["1", "2"]}, "any": {}}}}}]"#;
    let text = "<tool_call><function=f><parameter=on>\nTrue\n</parameter><parameter=o>\n{'a': [None, 'it\\'s']}\n</parameter>\
                <parameter=n>\n1e-05\n</parameter><parameter=s>\nnull\n</parameter><parameter=e>\n1\n</parameter>\
                <parameter=any>\nTrue\n</parameter></function></tool_call>";
    let answer = parse(Parser::new(format("qwen3-coder"), "").with_texts(TextParameters::of_tools(tools)), [text]);
    let expected = r#"{"on": true, "o": {"a": [null, "it's"]}, "n": 1e-05, "s": null, "e": "1", "any": "True"}"#;
    assert_eq!(answer.calls[0].arguments, expected);
    // A value that does not fit its schema becomes a string, so that no text is lost.
    let wrong = "<tool_call><function=f><parameter=on>\nmaybe\n</parameter></function></tool_call>";
    let answer = parse(Parser::new(format("qwen3-coder"), "").with_texts(TextParameters::of_tools(tools)), [wrong]);
    assert_eq!(answer.calls[0].arguments, r#"{"on": "maybe"}"#);
}

/// Tests formats in which only its text distinguishes a call from an answer. An answer is returned
/// as soon as it cannot become a call, and no part of a call is returned as content.
#[test]
fn call_lookalikes_are_streamed_once_decided() {
    for (name, answer, seen) in [
        ("llama3", "{\"answer\": [1, 2], \"name\": \"f\"}\n", "{\"an"),
        ("llama3", "{\"name\": \"h\", \"parameters\": {}} and more", "{\"name\": \"h"),
        ("hammer", "[1, 2]", "[1"),
        ("hammer", " [{\"x\": \"[f(a=1)]\"}]", " [{\"x"),
        ("hammer", "[]", "[]"),
        ("pythonic", "[x, y] is a list", "[x"),
        ("pythonic", "[f, g]", "[f,"),
        ("firefunction-v2", "Use functools[0], or reduce it", "Use functools[0"),
    ] {
        let mut parser = parser_of(format(name), "");
        let mut shown = String::new();
        for (at, c) in answer.char_indices() {
            let end = at + c.len_utf8();
            let mut part = Answer::default();
            part.extend(parser.push(&answer[at..end]));
            assert!(part.calls.is_empty(), "{name}: {answer}");
            shown += &part.content;
            if end == seen.len() {
                assert_eq!(shown.trim_start(), seen.trim_start(), "{name}: {answer}");
            } else if end > seen.len() {
                assert_eq!(shown.trim(), answer[..end].trim(), "{name}: {answer}");
            }
        }
        let mut rest = Answer::default();
        rest.extend(parser.finish());
        assert_eq!(shown + &rest.content, answer, "{name}");
    }
    for (name, call) in [
        ("llama3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}};"),
        ("hammer", "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]"),
        ("pythonic", "[f(a=1), g()]"),
        (
            "firefunction-v2",
            "functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        ),
    ] {
        let (mut parser, mut answer) = (parser_of(format(name), ""), Answer::default());
        for (at, c) in call.char_indices() {
            answer.extend(parser.push(&call[at..at + c.len_utf8()]));
            assert_eq!(answer.content, "", "{name}");
        }
        answer.extend(parser.finish());
        let calls: Vec<_> = answer.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!((&*answer.content, &*calls), ("", &[("f", "{\"a\": 1}"), ("g", "{}")][..]), "{name}");
    }
}

/// Tests calls of each format that are cut off at each character. The result is a beginning of the
/// whole call, and no text of the call is content.
#[test]
fn truncated_calls_are_prefixes_and_never_content() {
    for &(name, prompt, text, reasoning, content, calls) in CASES {
        // This holds only for texts that consist of calls of known tools. The incomplete marker of
        // content counts as content.
        let tools = calls.iter().map(|call| call.split(' ').nth(1).unwrap());
        if !content.is_empty()
            || !reasoning.is_empty()
            || calls.is_empty()
            || text.starts_with("<|python_start|><|python_end|>")
            || !tools.clone().all(|tool| ["f", "g"].contains(&tool))
        {
            continue;
        }
        let whole = parse(parser_of(format(name), prompt), [text]);
        for (at, _) in text.char_indices() {
            let (mut parser, mut cut) = (parser_of(format(name), prompt), Answer::default());
            cut.extend(parser.push(&text[..at]));
            cut.extend(parser.finish_cut());
            assert_eq!(cut.content.trim(), "", "{name}: {:?}", &text[..at]);
            for (cut, whole) in cut.calls.iter().zip(&whole.calls) {
                let is_beginning = whole.arguments.starts_with(&cut.arguments) && cut.name == whole.name;
                // Some formats accept a call without its end marker; the white space then differs.
                let is_value = serde_json::from_str::<serde_json::Value>(&cut.arguments).is_ok();
                assert!(is_beginning || is_value, "{name}: {cut:?} of {whole:?}");
            }
        }
    }
}

/// Tests that text that looks like a call is unchanged if calls are disabled.
#[test]
fn call_text_is_unchanged_with_calls_disabled() {
    for (name, text) in [
        ("qwen3", "a\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"),
        (
            "deepseek-v3.1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        ("llama3", "{\"name\": \"f\", \"parameters\": {}}"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
        ("gemma4", "<|tool_call>call:f{}<tool_call|>"),
        ("gigachat3", "function call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}"),
    ] {
        let answer = parse(parser_of(format(name), "").without_calls(), [text]);
        assert_eq!((&*answer.content, answer.calls.len()), (text, 0), "{name}");
        let in_characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        assert_eq!(parse(parser_of(format(name), "").without_calls(), in_characters), answer, "{name}");
    }
    let harmony = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}";
    let answer = parse(parser_of(format("harmony"), "<|start|>assistant").without_calls(), [harmony]);
    assert!(answer.calls.is_empty() && answer.content.ends_with("<|message|>{\"a\": 1}"), "{answer:?}");
}

/// Tests that, without tools, an answer that begins like a call is an answer, and is streamed.
#[test]
fn answers_without_tools_are_no_calls() {
    for (name, text) in [("llama3", "{\"name\": \"f\", \"parameters\": {}}"), ("pythonic", "[f(a=1)]")] {
        let mut parser = Parser::new(format(name), "");
        assert_eq!(parser.push(text), [ixc_text::chat::Delta::Content(text.to_owned())]);
    }
}

#[test]
fn format_is_detected_from_the_template() {
    for (text, name) in [
        ("{{ '<|start|>' }}<|channel|>analysis<|message|>", "harmony"),
        ("{{ '<|start|>assistant to=' }}<|message|><|eom|><atem:function_calls>", "muse-glimmer"),
        ("<|open|>message<|sep|><|close|>message<|sep|><|end_of_msg|>", "kimi-k3"),
        ("{%- set dsml_token = '｜DSML｜' -%}<think>", "dsml"),
        ("<tool_call>\n<function=example_function_name>", "qwen3-coder"),
        ("<think></think><answer></answer><tool_calls>", "hunyuan"),
        ("<think></think><answer></answer><tool_call>", "qwen3"),
        ("<tool_calls>\n<tool_call>", "qwen3"),
        ("<tool_calls>", "tool-calls"),
        ("<tool_call>\n{\"name\": <function-name>", "qwen3"),
        ("<tool_call>{function-name}\n<arg_key>", "glm4.5"),
        ("format {\"name\": function name, \"parameters\": dictionary of argument name and its value}", "llama3"),
        ("<tool_calls>[{\"name\": \"func_name1\", \"arguments\": {}}]</tool_calls> <answer> </think>", "hunyuan"),
        ("<tool_calls>\n{\"name\": <tool-name>, \"arguments\": <args-json-object>}", "tool-calls"),
        ("'<tool_call{}>'.format(HYTK) '<tool_sep{}>' ':opensource'", "hy3"),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("{{ ' functools[' + calls }}", "firefunction-v2"),
        ("Write \\'Action:\\' followed by a json-formatted list of actions that you want to perform", "command-r"),
        ("<|im_start|>", "plain"),
        ("", "plain"),
    ] {
        assert_eq!(format_of(text).name, name, "{text}");
    }
}

/// Tests that hostile text takes time in proportion to its length. Quadratic loops would take
/// minutes here.
#[test]
fn long_texts_take_linear_time() {
    let units = [
        "<tool_call>",
        "</tool_call>",
        "<tool_call>{\"name\": \"</tool_call>",
        "<think></think>",
        " ",
        "<",
        "<|channel|>",
        "<|start|>",
        "x ",
        "<|channel|>a<|message|>{<|end|>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f[ARGS]{\"",
        "<tool_call><function=f><parameter=a></parameter>",
        "<|tool_call>call:f{a:[",
        "<arg_key></arg_key>",
        "<minimax:tool_call><invoke name=",
        "<|tool_call_start|>[f(a=[",
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=f>]<]minimax[>[<a>",
        "<｜DSML｜function_calls><｜DSML｜invoke >",
        "<|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name=",
        " to=self<|message|><|eom|>",
    ];
    for format in FORMATS {
        for unit in units {
            let text = unit.repeat((1 << 17) / unit.len());
            let whole = parse(parser_of(format, "<think>"), [text.as_str()]);
            let pieces = text.len().div_ceil(4096);
            let cut = (0..=pieces).map(|piece| text.floor_char_boundary(piece * 4096)).collect::<Vec<_>>();
            let chopped = parse(parser_of(format, "<think>"), cut.windows(2).map(|ends| &text[ends[0]..ends[1]]));
            assert_eq!(whole, chopped, "{}: {unit}", format.name);
        }
    }
}

/// Returns random sequences of texts that occur in the formats.
fn text() -> impl Strategy<Value = String> {
    let parts = CASES.iter().flat_map(|case| {
        let mut parts = vec![case.2.to_owned()];
        parts.extend(case.2.split_inclusive(['>', '}', ']', '\n']).map(str::to_owned));
        parts
    });
    let parts: Vec<String> = parts.collect();
    let piece = prop_oneof![
        6 => prop::sample::select(parts),
        1 => "[a-z ]{1,8}|\\s{1,3}",
        1 => "[<>|{}\\[\\]\"':,/=\\\\]{1,6}",
        1 => "\\PC{1,4}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn runner() -> proptest::test_runner::TestRunner {
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    let rng = proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[7; 32]);
    proptest::test_runner::TestRunner::new_with_rng(config, rng)
}

#[test]
fn any_chopping_gives_the_same_answer() {
    let prompts = ["", "<think>\n", "<|start|>assistant", "[THINK]"];
    let strategy =
        (text(), prop::collection::vec(any::<prop::sample::Index>(), 0..8), prop::sample::select(prompts.to_vec()));
    let run = runner().run(&strategy, |(text, cuts, prompt)| {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        for format in FORMATS {
            let whole = parse(parser_of(format, prompt), [text.as_str()]);
            let chopped = parse(parser_of(format, prompt), cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]));
            prop_assert_eq!(&whole, &chopped, "{}", format.name);
            for call in &whole.calls {
                let is_begun = call.arguments.starts_with('{');
                prop_assert!(is_begun && !call.name.is_empty() && !call.id.is_empty());
                // Only calls of known tools return arguments before they are complete.
                let arguments = serde_json::from_str::<serde_json::Value>(&call.arguments);
                prop_assert!(arguments.is_ok_and(|it| it.is_object()) || ["f", "g"].contains(&&*call.name));
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Tests that a text without calls is returned completely and in order, except markers of reasoning
/// and white space.
#[test]
fn parsing_loses_no_text() {
    let words = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "{\"name\":",
        "<think>",
        "</think>",
        "a",
        "é ",
        "\n",
        "<",
        "{}",
    ]);
    let strategy = prop::collection::vec(words, 0..16).prop_map(|words| words.concat());
    let squeezed = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let run = runner().run(&strategy, |text| {
        let answer = parse(parser_of(format("qwen3"), ""), [text.as_str()]);
        prop_assert!(answer.calls.is_empty());
        let (mut rest, mut thinking) = (squeezed(&text), false);
        let (mut content, mut reasoning) = (squeezed(&answer.content), squeezed(&answer.reasoning));
        // Compares the text with the result. Each of its characters must be the next character of
        // the result, or part of a marker of reasoning.
        while !rest.is_empty() {
            let said = if thinking { &mut reasoning } else { &mut content };
            let marker = if thinking { "</think>" } else { "<think>" };
            let first = rest.chars().next().unwrap();
            if (said.starts_with(marker) || !rest.starts_with(marker)) && said.starts_with(first) {
                *said = said.split_off(first.len_utf8());
                rest = rest.split_off(first.len_utf8());
            } else {
                prop_assert!(rest.starts_with(marker), "{rest}");
                rest = rest.split_off(marker.len());
                thinking = !thinking;
            }
        }
        prop_assert!(content.is_empty() && reasoning.is_empty());
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Tests that ids of calls are unique, because a tool's result states the id. Earlier calls of the
/// conversation count, too, and the model may repeat a number.
#[test]
fn call_ids_are_unique_in_a_conversation() {
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
                <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
                <|tool_call_begin|>functions.g:3<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let qwen = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>".repeat(2);
    let ids = |name: &str, text: &str, taken: &[&str]| {
        let taken = taken.iter().map(|id| (*id).to_owned()).collect();
        let parser = parser_of(format(name), "").numbered_from(1).with_ids("c-".to_owned()).beside_ids(taken);
        parse(parser, [text]).calls.into_iter().map(|call| call.id).collect::<Vec<_>>()
    };
    assert_eq!(ids("kimi-k2", kimi, &[]), ["functions.f:0", "functions.f:2", "functions.g:3"]);
    assert_eq!(
        ids("kimi-k2", kimi, &["functions.f:0", "functions.f:1"]),
        ["functions.f:2", "functions.f:4", "functions.g:3"]
    );
    assert_eq!(ids("qwen3", &qwen, &[]), ["c-1", "c-2"]);
    assert_eq!(ids("qwen3", &qwen, &["c-2"]), ["c-1", "c-3"]);
    // Mistral's templates accept only ids of nine letters and digits.
    let mistral = ids("mistral", &"[TOOL_CALLS]f[ARGS]{}".repeat(3), &[]);
    let fits = |id: &String| id.len() == 9 && id.bytes().all(|c| c.is_ascii_alphanumeric());
    assert!(mistral.len() == 3 && mistral.iter().all(fits), "{mistral:?}");
    assert!(mistral[0] != mistral[1] && mistral[1] != mistral[2], "{mistral:?}");
}
