//! Conversation formats that many models share, for model files without a template. The table has a
//! Jinja source for each format.
//!
//! The sources have links to the descriptions of the formats. Roles are `system`, `user` and
//! `assistant`. Formats without system messages put the text of a system message before the first
//! user message, as their authors do.
//!
//! ```
//! use ixc_text::template::{Conversation, Message, known};
//! let conversation = Conversation { messages: vec![Message::new("user", "hi")], add_generation_prompt: true, ..Conversation::default() };
//! let chatml = known::find("chatml").expect("a row of the table").template();
//! assert_eq!(chatml.render(&conversation)?, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
//! # Ok::<(), ixc_text::template::TemplateError>(())
//! ```

use super::ChatTemplate;

/// Conversation format in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFormat {
    /// Name of the format. It is llama.cpp's name if llama.cpp has the format.
    pub name: &'static str,
    /// Models that were trained with the format.
    pub models: &'static str,
    source: &'static str,
}

impl KnownFormat {
    /// Returns the format as a template.
    pub fn template(&self) -> ChatTemplate {
        ChatTemplate { source: self.source.to_owned() }
    }
}

macro_rules! known {
    ($($name:literal: $models:literal;)*) => {
        /// All formats.
        pub const KNOWN: &[KnownFormat] = &[$(KnownFormat {
            name: $name,
            models: $models,
            source: include_str!(concat!("known/", $name, ".jinja")),
        }),*];
    };
}

known! {
    "alpaca":     "Alpaca and many early fine-tunes";
    "chatml":     "Qwen, Yi, Hermes, SmolLM and many more";
    "command-r":  "Command R";
    "deepseek2":  "DeepSeek LLM and V2";
    "deepseek3":  "DeepSeek V2.5, V3, R1";
    "gemma":      "Gemma 1 to 3";
    "granite":    "Granite 3 and later";
    "llama2":     "Llama 2 chat";
    "llama3":     "Llama 3 to 3.3";
    "mistral-v1": "Mistral 7B Instruct 0.1 and 0.2, Mixtral 8x7B";
    "mistral-v3": "Mistral 7B Instruct 0.3, Mixtral 8x22B";
    "mistral-v7": "Mistral Large 2411, Mistral Small 3 and later";
    "phi3":       "Phi-3 and 3.5";
    "phi4":       "Phi-4";
    "rwkv-world": "RWKV with World vocabularies";
    "vicuna":     "Vicuna 1.1 and later";
    "zephyr":     "Zephyr, StableLM 2, TinyLlama";
}

/// Returns the format with this name, if it exists.
pub fn find(name: &str) -> Option<&'static KnownFormat> {
    KNOWN.iter().find(|known| known.name == name)
}

/// Returns the names of all formats.
pub fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Conversation, Message};

    /// Tests one conversation in each format, with the special tokens `<s>` and `</s>`.
    #[test]
    fn known_formats_match_their_published_form() {
        let expected = [
            ("alpaca", "<s>S\n\n### Instruction:\nA\n\n### Response:\nB</s>\n\n### Instruction:\nC\n\n### Response:\n"),
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n\
                 <|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "command-r",
                "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>A<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>B<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>C<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
            ("deepseek2", "<s>S\n\nUser: A\n\nAssistant: B</s>User: C\n\nAssistant:"),
            ("deepseek3", "<s>S<｜User｜>A<｜Assistant｜>B</s><｜User｜>C<｜Assistant｜>"),
            (
                "gemma",
                "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n\
                 <start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "granite",
                "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>A<|end_of_text|>\n\
                 <|start_of_role|>assistant<|end_of_role|>B<|end_of_text|>\n\
                 <|start_of_role|>user<|end_of_role|>C<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
            ),
            ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            ("mistral-v1", "<s> [INST] S\n\nA [/INST] B</s> [INST] C [/INST]"),
            ("mistral-v3", "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]"),
            ("mistral-v7", "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] A[/INST] B</s>[INST] C[/INST]"),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|>\
                 <|im_start|>assistant<|im_sep|>B<|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>",
            ),
            ("rwkv-world", "<s>System: S\n\nUser: A\n\nAssistant: B\n\nUser: C\n\nAssistant:"),
            ("vicuna", "<s>S USER: A ASSISTANT: B</s>USER: C ASSISTANT:"),
            ("zephyr", "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n<|assistant|>\n"),
        ];
        let turns = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")];
        let conversation = Conversation {
            messages: turns.map(|(role, content)| Message::new(role, content)).into(),
            add_generation_prompt: true,
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            ..Conversation::default()
        };
        assert_eq!(names(), expected.map(|(name, _)| name));
        for (known, (name, text)) in KNOWN.iter().zip(expected) {
            assert_eq!(known.template().render(&conversation).as_deref(), Ok(text), "{name}");
            assert!(known.source.starts_with("{#- ") && known.source.contains("https://"), "{name}: no origin");
        }
    }
}
