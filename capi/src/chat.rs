//! Conversations: messages, tools, prompts and answers.

use std::ffi::c_char;
use std::path::PathBuf;
use std::sync::Arc;

use ixc::GenerationError;
use ixc::chat::{ChatPrompt, PromptMaker, ToolUse};
use ixc::text::chat::{Answer, ToolCall};
use ixc::text::template::{ChatTemplate, Conversation, Json, Message};
use serde_json::Value;

use crate::arguments::{Buffer, HandlePlace, SizedStruct, free, not_null, optional_string, read_struct, string};
use crate::error::{Failure, IxcStatus, status};
use crate::exclusive::Exclusive;
use crate::generate::{GenerateOptions, IxcGenerateOptions, IxcGeneration, generate};
use crate::model::{IxcModel, Shared};

/// Role of a model's answers.
const ASSISTANT: &str = "assistant";

/// A conversation.
#[derive(Debug)]
pub struct IxcChat {
    model: Arc<Shared>,
    template: ChatTemplate,
    /// Program that renders the template.
    renderer: Option<PathBuf>,
    conversation: Exclusive<Conversation>,
}

/// `ixc_chat_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcChatOptions {
    size: usize,
    chat_template: *const c_char,
    renderer: *const c_char,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are pointers.
unsafe impl SizedStruct for IxcChatOptions {}

/// `ixc_message`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcMessage {
    size: usize,
    role: *const c_char,
    content: *const c_char,
    reasoning: *const c_char,
    tool_calls: *const c_char,
    tool_call_id: *const c_char,
    name: *const c_char,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are pointers.
unsafe impl SizedStruct for IxcMessage {}

impl IxcChat {
    /// Renders a conversation up to the beginning of the answer.
    fn prompt(&self, conversation: &Conversation) -> Result<ChatPrompt, Failure> {
        let maker = PromptMaker {
            tokenizer: self.model.tokenizer()?,
            template: &self.template,
            renderer: self.renderer.as_deref(),
            context: self.model.facts.context as usize,
            trained_context: self.model.facts.trained_context as usize,
        };
        Ok(maker.prompt(conversation, ToolUse::FREE)?)
    }
}

/// Returns the failure for a text that is not the expected JSON. The message names the text.
fn not_json(what: &str, expected: &str) -> Failure {
    Failure::usage(format!("{what} is not {expected}"))
}

/// Reads tool calls in OpenAI's form.
fn tool_calls(json: &str) -> Result<Vec<ToolCall>, Failure> {
    const EXPECTED: &str = "a JSON array of calls with an id and a function with a name and arguments";
    let wrong = || not_json("message->tool_calls", EXPECTED);
    let calls: Vec<Value> = serde_json::from_str(json).map_err(|_| wrong())?;
    let call = |call: &Value| {
        let text = |at: &str| call.pointer(at).and_then(Value::as_str).map(str::to_owned);
        let id = text("/id").unwrap_or_default();
        Some(ToolCall { id, name: text("/function/name")?, arguments: text("/function/arguments")? })
    };
    calls.iter().map(|each| call(each).ok_or_else(wrong)).collect()
}

/// Begins a conversation.
///
/// # Safety
/// `model` is null or open; `options` is null or valid, and so are its texts. `chat` is null or has
/// room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_new(
    model: *const IxcModel,
    options: *const IxcChatOptions,
    chat: *mut *mut IxcChat,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("chat", chat) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let options = unsafe { read_struct("options", options) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let source = unsafe { optional_string("options->chat_template", options.chat_template) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let renderer = unsafe { optional_string("options->renderer", options.renderer) }?.map(PathBuf::from);
        let source = source.or(model.chat_template.as_deref()).ok_or(GenerationError::NoTemplate)?;
        let chat = IxcChat {
            model: Arc::clone(model),
            template: ChatTemplate::from_source(source)?,
            renderer,
            conversation: Exclusive::new(Conversation { add_generation_prompt: true, ..Conversation::default() }),
        };
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(chat) };
        Ok(())
    })
}

/// Frees a conversation.
///
/// # Safety
/// `chat` is null, or came from [`ixc_chat_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_free(chat: *mut IxcChat) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(chat) };
}

/// Adds a message.
///
/// # Safety
/// `chat` is null or was not freed; `message` is null or valid, and so are its texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_add(chat: *mut IxcChat, message: *const IxcMessage) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let given = unsafe { read_struct("message", message) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let role = unsafe { string("message->role", given.role) }?;
        let text = |what: &str, at: *const c_char| {
            // SAFETY: the caller meets the conditions of `# Safety`.
            unsafe { optional_string(what, at) }.map(|text| text.map(str::to_owned))
        };
        let calls = text("message->tool_calls", given.tool_calls)?;
        let message = Message {
            content: text("message->content", given.content)?.unwrap_or_default(),
            reasoning: text("message->reasoning", given.reasoning)?,
            tool_calls: calls.as_deref().map_or(Ok(Vec::new()), tool_calls)?,
            tool_call_id: text("message->tool_call_id", given.tool_call_id)?,
            name: text("message->name", given.name)?,
            ..Message::new(role, "")
        };
        chat.conversation.lock("the chat")?.messages.push(message);
        Ok(())
    })
}

/// Removes the last message.
///
/// # Safety
/// `chat` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_remove_last(chat: *mut IxcChat) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        let removed = chat.conversation.lock("the chat")?.messages.pop();
        removed.map(drop).ok_or_else(|| Failure::usage("the chat has no message"))
    })
}

/// Sets the tools of a conversation.
///
/// # Safety
/// `chat` is null or was not freed; `tools` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_set_tools(chat: *mut IxcChat, tools: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let tools = unsafe { optional_string("tools", tools) }?.unwrap_or("[]");
        let wrong = || not_json("tools", "a JSON array of objects with a function that has a name");
        let tools: Vec<Value> = serde_json::from_str(tools).map_err(|_| wrong())?;
        if tools.iter().any(|tool| !tool.pointer("/function/name").is_some_and(Value::is_string)) {
            return Err(wrong());
        }
        let tools = tools.iter().map(|tool| Json::new(tool.to_string())).collect::<Result<_, _>>()?;
        chat.conversation.lock("the chat")?.tools = tools;
        Ok(())
    })
}

/// Sets a variable of the template.
///
/// # Safety
/// `chat` is null or was not freed; the texts are null or end with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_set_variable(
    chat: *mut IxcChat,
    name: *const c_char,
    value: *const c_char,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let name = unsafe { string("name", name) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let value = Json::new(unsafe { string("value", value) }?)?;
        let mut conversation = chat.conversation.lock("the chat")?;
        conversation.variables.retain(|(other, _)| other != name);
        conversation.variables.push((name.to_owned(), value));
        Ok(())
    })
}

/// Writes the tokens of a conversation.
///
/// # Safety
/// `chat` is null or was not freed; the buffer is as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_tokens(
    chat: *const IxcChat,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        let buffer = Buffer::new("tokens", tokens, capacity, count)?;
        let prompt = chat.prompt(&*chat.conversation.lock("the chat")?)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(&prompt.tokens) }
    })
}

/// Generates an answer and adds it to the conversation.
///
/// # Safety
/// `chat` is null or was not freed; `options` is null or valid, and so is all that it points to.
/// `generation` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_chat_generate(
    chat: *mut IxcChat,
    options: *const IxcGenerateOptions,
    generation: *mut *mut IxcGeneration,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("generation", generation) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let chat = not_null("chat", unsafe { chat.as_ref() })?;
        let model = &*chat.model;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let options = unsafe { GenerateOptions::read(options, model) }?;
        // Every call locks the model before other handles, so that no two calls wait for each
        // other.
        let mut running = model.lock()?;
        let mut conversation = chat.conversation.lock("the chat")?;
        let ChatPrompt { tokens, parser, .. } = chat.prompt(&conversation)?;
        let generated = generate(model, &mut running, &tokens, &options, parser)?;
        let Answer { reasoning, content, calls } = generated.answer.clone();
        let reasoning = Some(reasoning).filter(|text| !text.is_empty());
        conversation.messages.push(Message { reasoning, tool_calls: calls, ..Message::new(ASSISTANT, content) });
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(generated.into()) };
        Ok(())
    })
}
