//! Table of chat formats. Each row has the markers of a format's reasoning and calls, and the
//! grammar of its calls.
//!
//! A row is a small automaton. Text is in one of these states: content, reasoning, between calls, a
//! call, or the header of a message. The row's markers change the state. The formats are those of
//! the chat templates of Qwen, GLM, Gemma, Mistral and others, and of these documents:
//!
//! - harmony: <https://cookbook.openai.com/articles/openai-harmony>
//! - DeepSeek: <https://huggingface.co/deepseek-ai/DeepSeek-V3.2> (`encoding`)
//! - Kimi: <https://huggingface.co/moonshotai/Kimi-K2-Instruct> (`docs/tool_call_guidance.md`)
//! - MiniMax: <https://huggingface.co/MiniMaxAI/MiniMax-M2> (`docs/tool_calling_guide.md`)

use State::{Call, Content, Header, Reasoning, Section};

use super::grammar::{Grammar, Id, ParameterTag, pair};

/// State of the parser: the kind of text that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The answer.
    Content,
    /// Reasoning before the answer.
    Reasoning,
    /// Text in a section of calls, which has markers of its own, but outside of the calls. Such
    /// text is content.
    Section,
    /// A tool call.
    Call,
    /// Header of a message in harmony and Muse Glimmer. It states the recipient and the channel.
    Header,
}

impl State {
    pub(super) const ALL: [State; 5] = [Content, Reasoning, Section, Call, Header];
}

/// Transition of the automaton: a marker leads from some states to another state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub from: &'static [State],
    pub marker: &'static str,
    pub to: State,
    /// Whether the marker counts only at the beginning of the content, in an answer that may call
    /// tools. Elsewhere it is ordinary text.
    pub only_first: bool,
}

/// Format of a model's output, with markers and a grammar of calls.
#[derive(Debug)]
pub struct Format {
    /// Name of the format.
    pub name: &'static str,
    /// Models whose output has this format.
    pub models: &'static str,
    /// Texts that identify the format. A template has this format if it contains all texts of one
    /// of these lists.
    signs: &'static [&'static [&'static str]],
    /// State in which an answer begins, if the prompt ends with one of these texts. Otherwise it
    /// begins in content.
    pub(super) begins: &'static [(&'static str, State)],
    pub(super) moves: &'static [Move],
    /// Grammar of the text of a call.
    pub(super) call: Grammar,
}

const fn at(from: &'static [State], marker: &'static str, to: State) -> Move {
    Move { from, marker, to, only_first: false }
}

const fn first(marker: &'static str, to: State) -> Move {
    Move { from: &[Content], marker, to, only_first: true }
}

/// States that a message of harmony can be in.
const MESSAGE_STATES: &[State] = &[Content, Reasoning, Call];
/// Beginning state for prompts that end with `<think>`, the marker of most models.
const THINK: &[(&str, State)] = &[("<think>", Reasoning)];
/// All formats. The first format whose signs match is used, so formats with more signs come first.
pub static FORMATS: &[Format] = &[
    Format {
        name: "harmony",
        models: "gpt-oss",
        signs: &[&["<|channel|>", "<|message|>", "<|start|>"]],
        begins: &[("<|start|>assistant", Header)],
        moves: &[
            at(MESSAGE_STATES, "<|end|>", Content),
            at(MESSAGE_STATES, "<|return|>", Content),
            at(MESSAGE_STATES, "<|call|>", Content),
            at(MESSAGE_STATES, "<|start|>", Header),
            at(&[Content, Reasoning], "<|channel|>", Header),
            // Content is only the default: the channel and the recipient in the header decide the
            // state.
            at(&[Header], "<|message|>", Content),
            at(&[Header], "<|start|>", Header),
        ],
        call: Grammar::Arguments,
    },
    Format {
        name: "muse-glimmer",
        models: "Muse Glimmer",
        signs: &[&["<|start|>", "<|eom|>", "<atem:function_calls>"]],
        begins: &[("<|start|>assistant", Header)],
        moves: &[
            at(MESSAGE_STATES, "<|eom|>", Content),
            at(MESSAGE_STATES, "<|eot|>", Content),
            at(MESSAGE_STATES, "<|start|>", Header),
            at(&[Header], " to=self<|message|>", Reasoning),
            at(&[Header], " to=user<|message|>", Content),
            // Any recipient other than the user is a tool, whose message is a call.
            at(&[Header], "<|message|>", Content),
            at(&[Header], "<|start|>", Header),
        ],
        call: Grammar::Tags {
            name: pair("<atem:function_calls>\n<atem:invoke name=", ">"),
            end: "</atem:invoke>\n</atem:function_calls>",
            parameter: ParameterTag { open: "<atem:parameter name=", between: ">", close: "</atem:parameter>" },
            sections: false,
        },
    },
    Format {
        name: "dsml",
        models: "DeepSeek V3.2, V4",
        signs: &[&["｜DSML｜"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<｜DSML｜function_calls>", Section),
            at(&[Section], "</｜DSML｜function_calls>", Content),
            at(&[Content], "<｜DSML｜tool_calls>", Section),
            at(&[Section], "</｜DSML｜tool_calls>", Content),
            at(&[Section], "<｜DSML｜invoke ", Call),
            at(&[Call], "</｜DSML｜invoke>", Section),
        ],
        call: Grammar::Tags {
            name: pair("name=", ">"),
            end: "",
            parameter: ParameterTag {
                open: "<｜DSML｜parameter name=", between: ">", close: "</｜DSML｜parameter>"
            },
            sections: false,
        },
    },
    Format {
        name: "kimi-k2",
        models: "Kimi K2, K2 Thinking",
        signs: &[&["<|tool_calls_section_begin|>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<|tool_calls_section_begin|>", Section),
            at(&[Section], "<|tool_calls_section_end|>", Content),
            at(&[Section], "<|tool_call_begin|>", Call),
            at(&[Call], "<|tool_call_end|>", Section),
        ],
        call: Grammar::Named { separator: "<|tool_call_argument_begin|>", id: Id::Whole },
    },
    Format {
        name: "kimi-k3",
        models: "Kimi K3",
        signs: &[&["<|open|>", "<|close|>", "<|end_of_msg|>"]],
        begins: &[("<|open|>think<|sep|>", Reasoning)],
        moves: &[
            at(&[Content], "<|open|>think<|sep|>", Reasoning),
            at(&[Reasoning], "<|close|>think<|sep|>", Content),
            at(&[Content], "<|open|>response<|sep|>", Content),
            at(&[Content], "<|close|>response<|sep|>", Content),
            at(&[Content], "<|open|>tools<|sep|>", Section),
            at(&[Section], "<|close|>tools<|sep|>", Content),
            at(&[Section], "<|open|>call ", Call),
            at(&[Call], "<|close|>call<|sep|>", Section),
            at(&[Content], "<|close|>message<|sep|>", Content),
            at(&[Content], "<|end_of_msg|>", Content),
        ],
        call: Grammar::Tags {
            name: pair("tool=", "<|sep|>"),
            end: "",
            parameter: ParameterTag {
                open: "<|open|>argument key=",
                between: "<|sep|>",
                close: "<|close|>argument<|sep|>",
            },
            sections: false,
        },
    },
    Format {
        name: "minimax-m2",
        models: "MiniMax M2",
        signs: &[&["<minimax:tool_call>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<minimax:tool_call>", Section),
            at(&[Section], "</minimax:tool_call>", Content),
            at(&[Section], "<invoke ", Call),
            at(&[Call], "</invoke>", Section),
        ],
        call: Grammar::Tags {
            name: pair("name=", ">"),
            end: "",
            parameter: ParameterTag { open: "<parameter name=", between: ">", close: "</parameter>" },
            sections: false,
        },
    },
    Format {
        name: "minimax-m3",
        models: "MiniMax M3",
        signs: &[&["]<]minimax[>["]],
        begins: &[("<mm:think>", Reasoning)],
        moves: &[
            at(&[Content], "<mm:think>", Reasoning),
            at(&[Reasoning], "</mm:think>", Content),
            at(&[Content], "]<]minimax[>[<tool_call>", Section),
            at(&[Section], "]<]minimax[>[</tool_call>", Content),
            at(&[Section], "]<]minimax[>[<invoke ", Call),
            at(&[Call], "]<]minimax[>[</invoke>", Section),
        ],
        call: Grammar::Marked { name: pair("name=", ">"), mark: "]<]minimax[>[" },
    },
    Format {
        name: "gemma4",
        models: "Gemma 4",
        signs: &[&["<|tool_call>", "<|channel>"]],
        begins: &[("<|channel>thought", Reasoning)],
        moves: &[
            at(&[Content], "<|channel>thought", Reasoning),
            at(&[Reasoning], "<channel|>", Content),
            at(&[Content], "<|tool_call>", Call),
            at(&[Call], "<tool_call|>", Content),
        ],
        call: Grammar::Braces { quote: "<|\"|>" },
    },
    Format {
        name: "glm4.5",
        models: "GLM-4.5 to 5, Laguna, Spark 2.5, Ling 3",
        signs: &[&["<arg_key>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<tool_call>", Call),
            at(&[Call], "</tool_call>", Content),
        ],
        call: Grammar::Pairs {
            after_name: "",
            key: pair("<arg_key>", "</arg_key>"),
            value: pair("<arg_value>", "</arg_value>"),
        },
    },
    Format {
        name: "hy3",
        models: "Hy3",
        signs: &[&["<tool_sep{}>", ":opensource"]],
        begins: &[("<think:opensource>", Reasoning)],
        moves: &[
            at(&[Content], "<think:opensource>", Reasoning),
            at(&[Reasoning], "</think:opensource>", Content),
            at(&[Content], "<tool_calls:opensource>", Section),
            at(&[Section], "</tool_calls:opensource>", Content),
            at(&[Section], "<tool_call:opensource>", Call),
            at(&[Call], "</tool_call:opensource>", Section),
        ],
        call: Grammar::Pairs {
            after_name: "<tool_sep:opensource>",
            key: pair("<arg_key:opensource>", "</arg_key:opensource>"),
            value: pair("<arg_value:opensource>", "</arg_value:opensource>"),
        },
    },
    Format {
        name: "solar-open",
        models: "Solar Open",
        signs: &[&["<|tool_call:begin|>", "<|think|>"]],
        begins: &[("<|begin|>assistant<|think|>", Reasoning)],
        moves: &[
            at(&[Content], "<|think|>", Reasoning),
            at(&[Content], "<|begin|>assistant", Content),
            at(&[Content], "<|content|>", Content),
            at(&[Content, Reasoning, Section], "<|end|>", Content),
            at(&[Content], "<|tool_calls|>", Section),
            at(&[Section], "<|tool_call:begin|>", Call),
            at(&[Call], "<|tool_call:end|>", Section),
            at(&[Section], "<|calls|>", Content),
        ],
        call: Grammar::Named { separator: "<|tool_call:args|>", id: Id::Before("<|tool_call:name|>") },
    },
    Format {
        name: "command-a",
        models: "Command R7B and A",
        signs: &[&["<|START_ACTION|>"]],
        begins: &[("<|START_THINKING|>", Reasoning)],
        moves: &[
            at(&[Content], "<|START_THINKING|>", Reasoning),
            at(&[Reasoning], "<|END_THINKING|>", Content),
            at(&[Content], "<|START_RESPONSE|>", Content),
            at(&[Content], "<|END_RESPONSE|>", Content),
            at(&[Content], "<|START_TEXT|>", Content),
            at(&[Content], "<|END_TEXT|>", Content),
            at(&[Content], "<|START_ACTION|>", Call),
            at(&[Call], "<|END_ACTION|>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "minicpm3",
        models: "MiniCPM3",
        signs: &[&["<|tool_call_start|>", "<|thought_start|>"]],
        begins: &[("<|thought_start|>", Reasoning)],
        moves: &[
            at(&[Content], "<|thought_start|>", Reasoning),
            at(&[Reasoning], "<|thought_end|>", Content),
            at(&[Content], "<|tool_call_start|>", Call),
            at(&[Call], "<|tool_call_end|>", Content),
        ],
        call: Grammar::Python,
    },
    Format {
        name: "lfm2",
        models: "LFM2, LFM2.5",
        signs: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: [", "keep_past_thinking"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<|tool_call_start|>", Call),
            at(&[Call], "<|tool_call_end|>", Content),
        ],
        call: Grammar::Python,
    },
    Format {
        name: "granite3",
        models: "Granite 3",
        signs: &[&["<|tool_call|>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<|tool_call|>", Call),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "nemotron-nano",
        models: "Nemotron Nano 2",
        signs: &[&["<TOOLCALL>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<TOOLCALL>", Call),
            at(&[Call], "</TOOLCALL>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "apertus",
        models: "Apertus",
        signs: &[&["<|tools_prefix|>"]],
        begins: &[("<|inner_prefix|>", Reasoning)],
        moves: &[
            at(&[Content], "<|inner_prefix|>", Reasoning),
            at(&[Reasoning], "<|inner_suffix|>", Content),
            at(&[Content], "<|tools_prefix|>", Call),
            at(&[Call], "<|tools_suffix|>", Content),
        ],
        call: Grammar::Keyed,
    },
    Format {
        name: "gigachat3.1",
        models: "GigaChat 3.1",
        signs: &[&["<|function_call|>"]],
        begins: &[],
        moves: &[at(&[Content], "<|function_call|>", Call), at(&[Call], "<|message_sep|>", Content)],
        call: Grammar::Objects,
    },
    Format {
        name: "gigachat3",
        models: "GigaChat 3",
        signs: &[&["function call", "<|role_sep|>", "<|message_sep|>"]],
        begins: &[],
        moves: &[
            at(&[Content], "<|message_sep|>\n\nfunction call<|role_sep|>", Call),
            first("function call<|role_sep|>", Call),
            at(&[Call], "<|message_sep|>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "phi4-mini",
        models: "Phi-4-mini",
        signs: &[&["<|tool|>", "<|/tool|>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<|tool_call|>", Call),
            at(&[Call], "<|/tool_call|>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "mistral",
        models: "Mistral Small, Large and Nemo, Magistral, Ministral, Devstral",
        signs: &[&["[TOOL_CALLS]"]],
        begins: &[("[THINK]", Reasoning)],
        moves: &[
            at(&[Content], "[THINK]", Reasoning),
            at(&[Reasoning], "[/THINK]", Content),
            at(&[Content], "[TOOL_CALLS]", Call),
            at(&[Call], "[TOOL_CALLS]", Call),
        ],
        call: Grammar::Named { separator: "[ARGS]", id: Id::After { mark: "[CALL_ID]", length: 9 } },
    },
    Format {
        name: "deepseek-r1",
        models: "DeepSeek R1, V3 and V3-0324",
        signs: &[&["<｜tool▁calls▁begin｜>", "```json"]],
        begins: THINK,
        moves: DEEPSEEK_MOVES,
        call: Grammar::Fenced { separator: "<｜tool▁sep｜>" },
    },
    Format {
        name: "deepseek-v3.1",
        models: "DeepSeek V3.1",
        signs: &[&["<｜tool▁calls▁begin｜>"]],
        begins: THINK,
        moves: DEEPSEEK_MOVES,
        call: Grammar::Named { separator: "<｜tool▁sep｜>", id: Id::Numbered },
    },
    Format {
        name: "apriel",
        models: "Apriel 1.5 and 1.6",
        signs: &[&["[BEGIN FINAL RESPONSE]", "<tool_calls>"]],
        begins: &[("Here are my reasoning steps:", Reasoning)],
        moves: &[
            at(&[Content], "Here are my reasoning steps:", Reasoning),
            at(&[Reasoning], "[BEGIN FINAL RESPONSE]", Content),
            at(&[Content], "[END FINAL RESPONSE]", Content),
            at(&[Content], "<tool_calls>", Call),
            at(&[Call], "</tool_calls>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "hunyuan",
        models: "Hunyuan A13B",
        signs: &[&["<answer>", "</think>", "<tool_calls>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<answer>", Content),
            at(&[Content], "</answer>", Content),
            at(&[Content], "<tool_calls>", Call),
            at(&[Call], "</tool_calls>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "olmo3",
        models: "OLMo 3",
        signs: &[&["<function_calls>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<function_calls>", Call),
            at(&[Call], "</function_calls>", Content),
        ],
        call: Grammar::Python,
    },
    Format {
        name: "seed-oss",
        models: "Seed-OSS",
        signs: &[&["<seed:tool_call>", "<function="]],
        begins: &[("<seed:think>", Reasoning)],
        moves: &[
            at(&[Content], "<seed:think>", Reasoning),
            at(&[Reasoning], "</seed:think>", Content),
            at(&[Content], "<seed:tool_call>", Call),
            at(&[Call], "</seed:tool_call>", Content),
        ],
        call: FUNCTION_FORM,
    },
    Format {
        name: "qwen3-coder",
        models: "Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5",
        signs: &[&["<tool_call>", "<function="]],
        begins: THINK,
        moves: CHATML_MOVES,
        call: FUNCTION_FORM,
    },
    Format {
        name: "qwen3",
        models: "Qwen2.5, Qwen3, QwQ, Hermes, Granite 4, MiMo",
        signs: &[&["<tool_call>"]],
        begins: THINK,
        moves: CHATML_MOVES,
        call: Grammar::Objects,
    },
    Format {
        name: "tool-calls",
        models: "MiniMax M1, Jamba 1.5 and later",
        signs: &[&["<tool_calls>"]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<tool_calls>", Call),
            at(&[Call], "</tool_calls>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "minicpm5",
        models: "MiniCPM5",
        signs: &[&["<function name=\"", "<param name=\""]],
        begins: THINK,
        moves: &[
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
            at(&[Content], "<function name=", Call),
            at(&[Call], "</function>", Content),
        ],
        call: Grammar::Tags {
            name: pair("", ">"),
            end: "",
            parameter: ParameterTag { open: "<param name=", between: ">", close: "</param>" },
            sections: true,
        },
    },
    Format {
        name: "functionary-v3.1",
        models: "Functionary 3.1",
        signs: &[&["<function=example_function_name>{"]],
        begins: &[],
        moves: &[at(&[Content], "<function=", Call), at(&[Call], "</function>", Content)],
        call: Grammar::Named { separator: ">", id: Id::Numbered },
    },
    Format {
        name: "firefunction-v2",
        models: "FireFunction 2",
        signs: &[&[" functools["]],
        begins: &[],
        moves: &[at(&[Content], "functools[", Call)],
        call: Grammar::Bare(&Grammar::Objects),
    },
    // A call of the pseudo-tool `directly-answer` means that the model calls no tool.
    Format {
        name: "command-r",
        models: "Command R and R+",
        signs: &[&["followed by a json-formatted list of actions"]],
        begins: &[],
        moves: &[at(&[Content], "Action: ```json", Call), at(&[Call], "```", Content)],
        call: Grammar::Bare(&Grammar::Objects),
    },
    Format {
        name: "llama3",
        models: "Llama 3.1 to 4",
        signs: &[&["{\"name\": function name, \"parameters\": "]],
        begins: &[],
        moves: &[
            first("{", Call),
            at(&[Content], "<|python_tag|>", Call),
            at(&[Content], "<|python_start|>", Content),
            at(&[Content], "<|python_end|>", Content),
        ],
        call: Grammar::Bare(&Grammar::Objects),
    },
    Format {
        name: "hammer",
        models: "Hammer 2, xLAM",
        signs: &[&["{\"name\": \"func_name1\", \"arguments\": "]],
        begins: &[],
        moves: &[first("[", Call)],
        call: Grammar::Bare(&Grammar::Objects),
    },
    Format {
        name: "pythonic",
        models: "Llama 3.2 and 4 with calls as in Python, ToolACE",
        signs: &[&["[func_name1(params_name1=params_value1"]],
        begins: &[],
        moves: &[first("[", Call), at(&[Content], "<|python_start|>", Call), at(&[Call], "<|python_end|>", Content)],
        call: Grammar::Bare(&Grammar::Python),
    },
    // No template has this format. If a call is required from a model whose own format cannot be
    // used, the prompt describes this format. Only `\n}` ends a call, which a JSON string cannot
    // contain.
    Format {
        name: "generic",
        models: "those of `plain`, where they must call",
        signs: &[],
        begins: &[],
        moves: GENERIC_CALL,
        call: Grammar::Objects,
    },
    Format {
        name: "generic-think",
        models: "those of `think`, where they must call",
        signs: &[],
        begins: THINK,
        moves: &[
            GENERIC_CALL[0],
            GENERIC_CALL[1],
            at(&[Content], "<think>", Reasoning),
            at(&[Reasoning], "</think>", Content),
        ],
        call: Grammar::Objects,
    },
    Format {
        name: "think",
        models: "others that think",
        signs: &[&["<think>"], &["</think>"]],
        begins: THINK,
        moves: &[at(&[Content], "<think>", Reasoning), at(&[Reasoning], "</think>", Content)],
        call: Grammar::Objects,
    },
    Format { name: "plain", models: "all others", signs: &[&[]], begins: &[], moves: &[], call: Grammar::Objects },
];

const GENERIC_CALL: &[Move] = &[at(&[Content], "{\"tool_call\":", Call), at(&[Call], "\n}", Content)];

const CHATML_MOVES: &[Move] = &[
    at(&[Content], "<think>", Reasoning),
    at(&[Reasoning], "</think>", Content),
    at(&[Content], "<tool_call>", Call),
    at(&[Call], "</tool_call>", Content),
];

const DEEPSEEK_MOVES: &[Move] = &[
    at(&[Content], "<think>", Reasoning),
    at(&[Reasoning], "</think>", Content),
    at(&[Content], "<｜tool▁calls▁begin｜>", Section),
    at(&[Section], "<｜tool▁calls▁end｜>", Content),
    at(&[Section], "<｜tool▁call▁begin｜>", Call),
    at(&[Call], "<｜tool▁call▁end｜>", Section),
];

const FUNCTION_FORM: Grammar = Grammar::Tags {
    name: pair("<function=", ">"),
    end: "</function>",
    parameter: ParameterTag { open: "<parameter=", between: ">", close: "</parameter>" },
    sections: false,
};

/// Returns the format of a model with this chat template.
pub fn format_of(template: &str) -> &'static Format {
    let fits = |format: &&Format| format.signs.iter().any(|signs| signs.iter().all(|sign| template.contains(sign)));
    FORMATS.iter().find(fits).unwrap_or(&FORMATS[FORMATS.len() - 1])
}

/// Returns the format with this name, if it exists.
pub fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

impl Format {
    /// Returns whether the format has any markers.
    pub fn has_markers(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Returns the format for answers that must call a tool. It is `self` if the arguments of its
    /// calls are JSON. Otherwise it is a generic format, which the prompt must describe
    /// ([`with_tools_in_prompt`](crate::template::Conversation::with_tools_in_prompt)).
    pub fn for_calls(&'static self) -> &'static Format {
        let thinks = self.moves.iter().any(|of| of.to == Reasoning);
        let name = match (self.has_headers() || self.call_frame("").is_some(), thinks) {
            (true, _) => return self,
            (false, true) => "generic-think",
            (false, false) => "generic",
        };
        find(name).unwrap_or(self)
    }

    /// Returns the state in which an answer to this prompt begins.
    pub(super) fn begin(&self, prompt: &str) -> State {
        let end = prompt.trim_end();
        self.begins.iter().find(|(text, _)| end.ends_with(text)).map_or(Content, |(_, state)| *state)
    }
}
