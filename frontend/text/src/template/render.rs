//! Rendering in this process. Minijinja is configured like Jinja in transformers, and runs on a
//! thread whose stack suffices for the worst case.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::{borrow::Cow, thread};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::conversation::{ConversationForm, MARK};
use super::functions::{from_json, is_iterable, is_sequence, strftime_now, tojson};
use super::lists::namespace;
use super::{Budget, Conversation, Limit, STACK_BYTES, TemplateError, filters, python};

/// Maximum length of an error text in characters.
const MAX_REASON_CHARS: usize = 400;

/// Renders a conversation within its budget, except for the limits of memory and time.
pub fn render(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    let failed = |reason: String| TemplateError::Failed { reason };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, || render_here(source, conversation));
        let running = running.map_err(|error| failed(format!("no thread can be started for rendering: {error}")))?;
        // Values and the syntax tree are dropped on that thread, too, because dropping them
        // recurses as deeply as building them.
        running.join().unwrap_or_else(|_| Err(failed("the renderer panicked".to_owned())))
    })
}

fn render_here(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    let budget = Budget::for_conversation(conversation);
    let source = with_known_tags(source);
    let raised = Arc::new(Mutex::new(None));
    let mut environment = Environment::new();
    environment.set_syntax(white_space_of_transformers()?);
    environment.set_debug(false);
    environment.set_fuel(Some(budget.steps));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            python::write_text(out, value).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.set_unknown_method_callback(filters::method);
    filters::add_to(&mut environment);
    environment.add_filter("tojson", tojson);
    environment.add_filter("from_json", from_json);
    environment.add_function("namespace", namespace);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    let raise = Arc::clone(&raised);
    environment.add_function("raise_exception", move |message: &str| -> Result<Value, Error> {
        let message = shorten_message(message);
        *raise.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.clone());
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });

    let rendered_of = |conversation: &Conversation, form: ConversationForm| {
        let mut output = CappedWriter { bytes: Vec::new(), limit: budget.output_bytes, full: false };
        let context = conversation.value(form)?;
        let result = environment
            .template_from_named_str("chat_template", &source)
            .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
        let limit = |limit, allowed| TemplateError::Limit { limit, allowed };
        match result {
            Ok(()) => Ok(String::from_utf8_lossy(&output.bytes).into_owned()),
            Err(_) if output.full => Err(limit(Limit::Output, budget.output_bytes)),
            Err(error) if is_out_of_fuel(&error) => Err(limit(Limit::Steps, budget.steps)),
            Err(error) => Err(match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(message) => TemplateError::Raised { message },
                None => TemplateError::Invalid { line: error.line(), reason: reason(&error) },
            }),
        }
    };
    let rendered = |form: ConversationForm| rendered_of(conversation, form);
    let mut form = ConversationForm::default();
    let mut usual = rendered(form);
    let has_calls = conversation.messages.iter().any(|message| !message.tool_calls.is_empty());
    // If an answer was cut off, its calls have incomplete arguments, which templates cannot
    // traverse.
    if has_calls && matches!(usual, Err(TemplateError::Invalid { .. })) && conversation.has_cut_arguments() {
        form.whole_arguments = true;
        usual = rendered(form);
    }
    // Some templates concatenate arguments with text, or print them without `tojson`. They need
    // arguments as text.
    let takes_text = match &usual {
        Err(TemplateError::Invalid { .. }) => has_calls.then_some(""),
        Ok(text) => conversation.arguments_shown_in(text),
        Err(_) => None,
    };
    if let Some(arguments) = takes_text {
        let with_text = ConversationForm { text_arguments: true, ..form };
        if let Ok(text) = rendered(with_text)
            && text.contains(arguments)
        {
            (form, usual) = (with_text, Ok(text));
        }
    }
    // A short message may occur in any prompt by chance, so a mark is searched instead.
    let says = |text: &str, form: ConversationForm| {
        let marked = || rendered_of(&conversation.with_marks(), form).is_ok_and(|text| text.contains(MARK));
        conversation.appears_in(text).unwrap_or_else(marked)
    };
    // Some templates need content as a list of parts. They omit content that is a text.
    let in_parts = || {
        let in_parts = ConversationForm { content_in_parts: true, ..form };
        rendered(in_parts).ok().filter(|text| says(text, in_parts))
    };
    // Other templates write calls only if a message has no content, and omit them if the content is
    // an empty text.
    let with_calls = |usual: &str| {
        let count = conversation.calls_named_in(usual).filter(|_| source.contains("none"))?;
        let no_content = ConversationForm { no_content: true, ..form };
        let forms = [no_content, ConversationForm { text_arguments: true, ..no_content }];
        let text = forms.into_iter().find_map(|form| rendered(form).ok())?;
        conversation.calls_named_in(&text).filter(|more| *more > count).map(|_| text)
    };
    match usual {
        Ok(text) if !says(&text, form) => Ok(in_parts().unwrap_or(text)),
        Ok(text) => Ok(with_calls(&text).unwrap_or(text)),
        Err(error @ TemplateError::Invalid { .. }) => in_parts().ok_or(error),
        usual => usual,
    }
}

/// Returns a syntax in which the line break after a block tag and the indentation before it are
/// omitted: `trim_blocks=True, lstrip_blocks=True`.
fn white_space_of_transformers() -> Result<SyntaxConfig, TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|error| TemplateError::Failed { reason: error.to_string() })
}

/// Returns whether an error means that the steps are used up, here or in a macro.
fn is_out_of_fuel(error: &Error) -> bool {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<Error>()).any(|error| error.kind() == ErrorKind::OutOfFuel)
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => shorten_message(&format!("{}: {detail}", error.kind())),
        None => error.kind().to_string(),
    }
}

/// Returns a template's message in a form for terminals: shortened, and without control characters.
fn shorten_message(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { String::from(c) };
    text.chars().take(MAX_REASON_CHARS).map(escaped).collect()
}

/// Writer that keeps its output, up to a limit.
struct CappedWriter {
    bytes: Vec<u8>,
    limit: u64,
    full: bool,
}

impl Write for CappedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.limit - self.bytes.len() as u64 {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Rewrites a template for minijinja. `{% generation %} … {% endgeneration %}` marks the
/// assistant's text for training; it becomes a condition that always holds, with the same
/// white-space control. The slice `[::-1]` becomes a method, because minijinja cannot slice an
/// empty list in this way. Minijinja does not know the length of a text that a loop iterates over.
/// In templates that ask for the last element, such loops iterate over a list of characters.
fn with_known_tags(source: &str) -> Cow<'_, str> {
    const BACKWARDS: &str = "[::-1]";
    const LENGTH_VARIABLES: [&str; 3] = ["loop.last", "loop.length", "loop.revindex"];
    let counted = LENGTH_VARIABLES.iter().any(|word| source.contains(word));
    if !source.contains("generation") && !source.contains(BACKWARDS) && !counted {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 32);
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).min() {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find(if before.ends_with('%') { "%}" } else { "}}" }) else { break };
        let inside = &tag[..end];
        let replacement = match inside.trim_matches(['-', '+']).trim() {
            "generation" if before.ends_with('%') => " if true ",
            "endgeneration" if before.ends_with('%') => " endif ",
            _ => {
                let inside = inside.replace(BACKWARDS, &format!(".{}()", filters::REVERSED));
                let is_tag = before.ends_with('%');
                out.push_str(&if counted && is_tag { through_lists(&inside).unwrap_or(inside) } else { inside });
                rest = &tag[end..];
                continue;
            }
        };
        let sign = |c: Option<char>| c.filter(|c| matches!(c, '-' | '+'));
        out.extend(sign(inside.chars().next()));
        out.push_str(replacement);
        out.extend(sign(inside.chars().next_back()));
        rest = &tag[end..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Rewrites the tag of a loop, so that it iterates over a list of characters instead of a text.
/// Returns `None` for other tags, and for loops that filter elements.
fn through_lists(inside: &str) -> Option<String> {
    let body = inside.trim_matches(['-', '+']);
    let (names, through) = body.trim_start().strip_prefix("for ")?.split_once(" in ")?;
    let through = through.trim();
    let mut words = through.split(|c: char| !c.is_alphanumeric() && c != '_');
    if words.any(|word| ["if", "recursive"].contains(&word)) {
        return None;
    }
    let sign = |c: Option<char>| c.filter(|c| matches!(c, '-' | '+')).map(String::from).unwrap_or_default();
    let (first, last) = (sign(inside.chars().next()), sign(inside.chars().next_back()));
    Some(format!("{first} for {names} in ({through}) | {} {last}", filters::CHARACTERS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{MAX_SOURCE_BYTES, Message};

    fn conversation() -> Conversation {
        Conversation {
            messages: vec![Message::new("system", "be brief"), Message::new("user", "hi <&> \"you\"")],
            add_generation_prompt: true,
            bos_token: "<s>".into(),
            eos_token: "</s>".into(),
            ..Conversation::default()
        }
    }

    fn text(source: &str) -> String {
        render(source, &conversation()).unwrap_or_else(|error| panic!("{source}: {error}"))
    }

    #[test]
    fn chatml_and_llama_2_render_as_trained() {
        let chatml = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        let expected = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <&> \"you\"<|im_end|>\n\
                        <|im_start|>assistant\n";
        assert_eq!(text(chatml), expected);
        let llama = "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
                     {% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
                     {% set system_message = false %}{% endif %}{% for message in loop_messages %}\
                     {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
                     {{ raise_exception('roles must alternate') }}{% endif %}\
                     {% if loop.index0 == 0 and system_message != false %}\
                     {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
                     {% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
                     {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% endif %}{% endfor %}";
        assert_eq!(text(llama), "<s>[INST] <<SYS>>\nbe brief\n<</SYS>>\n\nhi <&> \"you\" [/INST]");
    }

    #[test]
    fn transformers_template_functions_are_available() {
        assert_eq!(text("{{ messages[1] | tojson }}"), r#"{"role": "user", "content": "hi <&> \"you\""}"#);
        assert_eq!(text("{{ [1, {'a': none}] | tojson }}"), r#"[1, {"a": null}]"#);
        assert_eq!(text("{{ [1] | tojson(indent=4) }}"), "[\n    1\n]");
        assert_eq!(
            text("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"),
            "2"
        );
        assert_eq!(
            text("{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"),
            "system"
        );
        // `loop.last` must also hold for the last character of a text.
        let last = "{{ c }}{{ '.' if loop.last else ',' }}{{ loop.length }}{%- endfor %}";
        for (through, expected) in [
            ("'aé'", "a,2é.2"),
            ("['x', 'yz']", "x,2yz.2"),
            ("{'k': 1}", "k.1"),
            ("''", ""),
            ("absent", ""),
            ("range(2)", "0,21.2"),
        ] {
            assert_eq!(text(&format!("{{%- for c in {through} -%}} {last}")), expected, "{through}");
        }
        assert_eq!(text("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}"), "a1True");
        assert_eq!(text("{% for c in [1, 2, 3] if c != 3 %}{{ c }}{{ loop.last }}{% endfor %}"), "1False2True");
        assert_eq!(text("{% for c in [1, 2, 3]\nif(c != 3) %}{{ c }}{{ loop.last }}{% endfor %}"), "1False2True");
        assert_eq!(
            text("{{ 'a,b'.split(',') | length }}{{ 'abc'.startswith('ab') }}{{ {'k': 1}.items() | list | length }}"),
            "2True1"
        );
        assert_eq!(text("{%- generation -%} x {%- endgeneration -%} y"), "xy");
        assert_eq!(text("a {% generation %}x{%+endgeneration%} b"), "a x b");
        assert_eq!(text("{% if tools is not none %}tools{% endif %}{{ strftime_now('%Y') | length }}"), "4");
        assert_eq!(text("  {% if true %}\n  x\n  {% endif %}\n"), "  x\n");
    }

    #[test]
    fn each_bound_has_its_error() {
        let error = |source: &str| render(source, &conversation()).expect_err(source);
        let limit = |error: TemplateError| match error {
            TemplateError::Limit { limit, .. } => limit,
            other => panic!("{other}"),
        };
        let raised = TemplateError::Raised { message: "no".into() };
        assert_eq!(error("{{ raise_exception('no') }}"), raised);
        let escaped = TemplateError::Raised { message: "\\u{1b}[2J".into() };
        assert_eq!(error("{{ raise_exception('\u{1b}[2J') }}"), escaped);
        assert_eq!(error("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}"), raised);
        assert!(matches!(error("\n{% if %}"), TemplateError::Invalid { line: Some(2), .. }));
        assert!(matches!(error("{% include 'x' %}"), TemplateError::Invalid { .. }));
        assert!(matches!(error("{{ range(2**40) | list | length }}"), TemplateError::Invalid { .. }));
        assert!(matches!(error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), TemplateError::Invalid { .. }));
        let loops = "{% for a in range(1000) %}{% for b in range(1000) %}{{ a }}{% endfor %}{% endfor %}";
        assert_eq!(limit(error(loops)), Limit::Steps);
        let long = "{% for a in range(1000) %}{{ 'x' * 10000 }}{% endfor %}";
        assert_eq!(limit(error(long)), Limit::Output);
    }

    #[test]
    fn namespace_lists_support_only_append_and_pop() {
        let after =
            |code: &str| text(&format!("{{% set ns = namespace(l=['a', 'b', 'c']) %}}{code}{{{{ ns.l | tojson }}}}"));
        assert_eq!(
            after("{% set _ = ns.l.append('d') %}{{ ns.l.pop() }}{{ ns.l.pop(0) }}{{ ns.l.pop(-1) }}"),
            "dac[\"b\"]"
        );
        assert_eq!(
            after("{% for x in ns.l %}{{ x }}{% endfor %}{{ ns.l[1] }}{{ ns.l | length }}{{ 'b' in ns.l }}"),
            "abcb3True[\"a\", \"b\", \"c\"]"
        );
        assert_eq!(
            text("{% set ns = namespace({'l': []}) %}{{ ns.l.append(1) }}{{ 'x' if ns.l }}{{ ns.l }}"),
            "Nonex[1]"
        );
        for code in ["ns.l.append(ns.l)", "ns.l.append([1])", "ns.l.pop(3)", "ns.l.pop(-4)", "ns.l.clear()"] {
            let source = format!("{{% set ns = namespace(l=['a', 'b', 'c']) %}}{{{{ {code} }}}}");
            assert!(matches!(render(&source, &conversation()), Err(TemplateError::Invalid { .. })), "{code}");
        }
    }

    type Around = fn(String) -> String;

    /// Tests that [`STACK_BYTES`] suffices for each nested construct, at the maximum depth that
    /// source and steps allow.
    #[test]
    fn the_deepest_templates_do_not_overflow_the_stack() {
        // Folding a chain of unary operators takes quadratic time, so `-` is tested with a shorter
        // chain. A chain of the maximum length takes half a minute, and also fits into 64 MiB.
        let fill = |unit: &str, around: Around| {
            let bytes = if unit == "-" { MAX_SOURCE_BYTES / 16 } else { MAX_SOURCE_BYTES - 100 };
            around(unit.repeat(bytes / unit.len()))
        };
        let shapes: [(&str, Around); 21] = [
            ("{%elif a%}", |s| format!("{{%if a%}}{s}{{%endif%}}")),
            ("{%if 1%}", |s| s),
            ("{%for a in b%}", |s| s),
            ("not ", |s| format!("{{{{{s}a}}}}")),
            ("-", |s| format!("{{{{ {s}a}}}}")),
            ("1+", |s| format!("{{{{{s}1}}}}")),
            ("1~", |s| format!("{{{{{s}1}}}}")),
            ("1**", |s| format!("{{{{{s}1}}}}")),
            ("1<", |s| format!("{{{{{s}1}}}}")),
            ("1 or ", |s| format!("{{{{{s}1}}}}")),
            ("0 and ", |s| format!("{{{{{s}1}}}}")),
            ("1 in ", |s| format!("{{{{{s}1}}}}")),
            ("|e", |s| format!("{{{{1{s}}}}}")),
            (".a", |s| format!("{{{{a{s}}}}}")),
            ("[0]", |s| format!("{{{{a{s}}}}}")),
            ("()", |s| format!("{{{{a{s}}}}}")),
            ("1 if 1 else ", |s| format!("{{{{{s}1}}}}")),
            (" is a", |s| format!("{{{{a{s}}}}}")),
            ("(", |s| format!("{{{{{s}")),
            ("[", |s| format!("{{{{{s}")),
            ("{1:", |s| format!("{{{{{s}")),
        ];
        for (unit, around) in shapes {
            let source = fill(unit, around);
            assert!(source.len() <= MAX_SOURCE_BYTES);
            let _text_or_error = render(&source, &conversation());
        }
        // Each step nests a value one level deeper. The values are then printed, written as JSON,
        // compared and dropped.
        let mut long = conversation();
        long.messages = vec![Message::new("user", ""); 1000];
        for deep in [
            "{{ ns.x }}",
            "{{ ns.x | tojson }}",
            "{{ ns.x == ns.x }}",
            "{{ {ns.x: 1} }}",
            "{{ ns.x | string | length }}",
        ] {
            for count in [20_000, 100_000] {
                let nest = format!("{{% for a in range({count}) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}");
                let source = format!("{{% set ns = namespace(x=[]) %}}{nest}{deep}");
                render(&source, &long).unwrap_or_else(|error| panic!("{source}: {error}"));
            }
        }
    }
}
