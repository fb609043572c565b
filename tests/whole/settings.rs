//! Values of options from environment variables and the configuration file. `ixc doctor` shows
//! these values, and its output is tested, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value as Json, json};

use crate::support::{ixc, scratch, stderr, stdout};

/// A temporary home folder with a user's configuration.
struct Home {
    folder: PathBuf,
}

impl Home {
    fn new(name: &str) -> Home {
        Home { folder: scratch(name) }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("ixc/config.toml")
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.folder.join("ixc")).unwrap();
        fs::write(self.file(), text).unwrap();
    }

    /// Returns a command that runs with this user's home folder.
    fn ixc(&self, arguments: &[&str]) -> Command {
        let mut command = ixc(arguments);
        command
            .env_remove("IXC_CONFIG")
            .env_remove("IXC_NO_CACHE")
            .env("XDG_CONFIG_HOME", &self.folder)
            .env("XDG_CACHE_HOME", &self.folder);
        command
    }

    fn output(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        self.ixc(arguments).envs(variables.iter().copied()).output().unwrap()
    }

    fn stdout(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = self.ixc(arguments);
        command.envs(variables.iter().copied());
        stdout(command)
    }

    /// Returns a text in which a placeholder replaces the path of the folder.
    fn without_path(&self, text: &str) -> String {
        text.replace(self.folder.to_str().unwrap(), "HOME")
    }
}

const COST: [&str; 4] = ["kernel", "cost", "rms_norm_f32", "--json"];

#[test]
fn value_option_has_four_sources() {
    let home = Home::new("settings_value");
    let target = |arguments: &[&str], variables: &[(&str, &str)]| {
        let facts = home.stdout(&[&COST[..], arguments].concat(), variables);
        serde_json::from_str::<Json>(&facts).unwrap()["target"].as_str().unwrap().to_owned()
    };
    let variable = [("IXC_TARGET", "zen4")];
    home.write("target = \"haswell\"");
    assert_eq!(target(&[], &[]), "haswell");
    home.write("target = \"z80\"\n[kernel]\ntarget = \"z81\"\n[kernel.cost]\ntarget = \"haswell\"");
    assert_eq!(target(&[], &[]), "haswell");
    assert_eq!(target(&[], &variable), "zen4");
    assert_eq!(target(&["--target", "skylake-x"], &variable), "skylake-x");
    let other = home.folder.join("other.toml");
    fs::write(&other, "target = \"icelake\"").unwrap();
    assert_eq!(target(&["--config", other.to_str().unwrap()], &[]), "icelake");
    assert_eq!(target(&[], &[("IXC_CONFIG", other.to_str().unwrap())]), "icelake");
    let default = target(&["--config", "none"], &[]);
    fs::remove_file(home.file()).unwrap();
    assert_eq!(target(&[], &[]), default);
}

#[test]
fn flag_has_four_sources() {
    let home = Home::new("settings_flag");
    let is_json = |arguments: &[&str], variables: &[(&str, &str)]| {
        home.stdout(&[&["tokenize", "-p", "x"], arguments].concat(), variables).starts_with('{')
    };
    assert!(!is_json(&[], &[]) && is_json(&["--json"], &[]));
    for (value, expected) in [("true", true), ("1", true), ("false", false), ("0", false), ("", false)] {
        home.write(format!("json = {}", !expected));
        assert_eq!(is_json(&[], &[]), !expected);
        assert_eq!(is_json(&[], &[("IXC_JSON", value)]), expected, "{value:?}");
        assert!(is_json(&["--json"], &[("IXC_JSON", value)]));
    }
    home.write("json = false\n[tokenize]\njson = true");
    assert!(is_json(&[], &[]));
    // Details are shown only with `-vv`.
    let has_details = |variables: &[(&str, &str)]| {
        let output = home.output(&["run", "--raw", "-p", "The", "-n", "1"], variables);
        assert!(output.status.success());
        stderr(&output).contains("kernels ready")
    };
    assert!(!has_details(&[]) && has_details(&[("IXC_VERBOSE", "2")]));
    home.write("verbose = 2");
    assert!(has_details(&[]) && !has_details(&[("IXC_VERBOSE", "0")]));
}

#[test]
fn repeated_option_has_four_sources() {
    let home = Home::new("settings_repeated");
    let text = |arguments: &[&str], variables: &[(&str, &str)]| {
        let run = ["run", "--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "--target", "portable"];
        home.stdout(&[&run[..], arguments].concat(), variables)
    };
    let whole = text(&[], &[]);
    // These three words occur once in the text, and are used as stop texts. If the source that
    // takes precedence has several stop texts, the text ends at the first of them in the text.
    let words: Vec<&str> = whole.split_whitespace().collect();
    let unique = |word: &&&str| whole.matches(**word).count() == 1;
    let ends: Vec<&str> = words.iter().filter(unique).copied().collect();
    let [first, second, third] = ends[..3] else { panic!("{whole}") };
    let before = |word: &str| whole.split(word).next().unwrap().trim_end().to_owned();
    let stopped = |arguments: &[&str], variables: &[(&str, &str)]| text(arguments, variables).trim_end().to_owned();
    home.write(format!("stop = [{third:?}, {second:?}]"));
    assert_eq!(stopped(&[], &[]), before(second), "both values of the list stop the text");
    assert_eq!(stopped(&[], &[("IXC_STOP", third)]), before(third), "the variable replaces the list");
    assert_eq!(stopped(&["--stop", first, "--stop", third], &[("IXC_STOP", second)]), before(first));
    home.write(format!("stop = {second:?}"));
    assert_eq!(stopped(&[], &[]), before(second), "one value needs no list");
    home.write("stop = []");
    assert_eq!(text(&[], &[]), whole);
}

/// Checks options that conflict. The one from the source with higher precedence counts: the command
/// line, then the environment, then the file.
#[test]
fn conflicting_values_give_way() {
    let home = Home::new("settings_conflicts");
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = home.output(&[&["run", "-n", "1"], arguments].concat(), variables);
        (output.status.code(), home.without_path(&stderr(&output)))
    };
    for (file, arguments, variables) in [
        ("[run]\nchat = true", &["-p", "x", "--raw"][..], &[][..]),
        ("[run]\nraw = true", &["-p", "x"], &[("IXC_CHAT", "1")]),
        ("", &["-p", "x", "--raw"], &[("IXC_CHAT", "1"), ("IXC_SYSTEM", "Brief.")]),
        ("raw = true\n[run]\nchat = true", &["-p", "x"], &[]),
        ("[run]\nprompt = \"x\"\nraw = true", &["demo", "y"], &[]),
        // An option in the file has no effect if it requires another option that is missing.
        ("parallel = 8\noutput = \"o.jsonl\"\nkeep = 4", &["-p", "x"], &[("IXC_PIN_PERCENT", "7")]),
        // These conflicts are checked by the program, not by clap.
        ("model = \"missing.gguf\"", &["demo", "x"], &[]),
        ("memory = \"1GiB\"", &["-p", "x", "--experts", "map"], &[]),
        ("[run]\nexperts = \"map\"", &["-p", "x"], &[("IXC_MEMORY", "1GiB")]),
    ] {
        home.write(file);
        let (status, said) = run(arguments, variables);
        assert_eq!(status, Some(0), "{file:?} {arguments:?} {variables:?}: {said}");
    }
    // A required option may be set in the file.
    let tokens = home.folder.join("logits.npy");
    home.write(format!("[logits]\ntokens = \"1,2\"\noutput = {:?}", tokens.to_str().unwrap()));
    home.stdout(&["logits", "demo"], &[]);
    assert!(tokens.exists());
    // If options within a source conflict, or values conflict, the error names the sources.
    home.write("[run]\nraw = true\nchat = true");
    let (status, said) = run(&["-p", "x"], &[]);
    assert_eq!(status, Some(2));
    insta::assert_snapshot!("conflict_in_the_file", said);
    home.write("[run]\nspec-ngram-min = 9");
    let (status, said) = run(&["-p", "x", "--spec", "ngram", "--spec-ngram-max", "3"], &[]);
    assert_eq!(status, Some(2));
    insta::assert_snapshot!("conflict_of_values", said);
}

#[test]
fn malformed_files_are_refused() {
    let home = Home::new("settings_malformed");
    let mut page = String::new();
    let mut refuse = |text: &[u8], status: i32| {
        home.write(text);
        let output = home.output(&["kernel", "cost", "rms_norm_f32"], &[]);
        let said = home.without_path(&stderr(&output));
        assert_eq!(output.status.code(), Some(status), "{}: {said}", String::from_utf8_lossy(text));
        let shown: String = String::from_utf8_lossy(text).chars().take(100).collect();
        page += &format!("{shown}\n> {said}\n");
    };
    for text in [
        "threads =",
        "\n\nthreads = 1\nthreads = 2",
        "thread = 4",
        "\n[srve]\nport = 1",
        "[serve]\nprt = 1",
        "[serve]\nn-predict = 1",
        "[kernel.cost]\nport = 1",
        "[kernel]\nqueue-depth = 1",
        "[quantize]\nthreads = 1",
        "queue_depth = 4",
        "config = \"other.toml\"",
        "help = true",
        "serve = 1",
        "threads = true",
        "json = 1",
        "json = \"true\"",
        "verbose = 256",
        "verbose = -1",
        "port = 1979-05-27",
        "[serve]\nport = [1, 2]",
        "[run]\nstop = [\"a\",\n  true]",
        "[threads]\nrun = 1",
        "[[run]]\nctx = 1",
        "target = \"z80\"",
        "[kernel.cost]\nrows = -1",
        "color = \"mauve\"",
        "color = \"\\u001b[31m\"",
    ] {
        refuse(text.as_bytes(), 65);
    }
    refuse(b"threads = \"\xff\"", 65);
    refuse(format!("{} = 1", "k".repeat(1000)).as_bytes(), 65);
    refuse(format!("x = {}", "[".repeat(30_000)).as_bytes(), 65);
    refuse("a.".repeat(30_000).as_bytes(), 65);
    refuse("#".repeat(65_537).as_bytes(), 65);
    insta::assert_snapshot!("malformed_files", page);
    // A value that one command refuses affects neither other commands nor help.
    home.write("[serve]\nport = \"x\"");
    home.stdout(&["kernel", "cost", "rms_norm_f32"], &[]);
    home.write("thread = 4");
    home.stdout(&["run", "--help"], &[]);
    home.stdout(&["kernel", "cost", "rms_norm_f32", "--config", "none"], &[]);
}

#[test]
fn named_files_must_exist_and_be_files() {
    let home = Home::new("settings_named");
    fs::write(home.folder.join("own.toml"), "").unwrap();
    let said = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = home.ixc(&[&["kernel", "cost", "rms_norm_f32"], arguments].concat());
        let output = command.envs(variables.iter().copied()).current_dir(&home.folder).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    assert_eq!(said(&[], &[]).0, Some(0), "the default file may be missing");
    assert_eq!(said(&["--config", "own.toml"], &[]).0, Some(0));
    for (status, said) in [said(&["--config", "owm.toml"], &[]), said(&[], &[("IXC_CONFIG", "owm.toml")])] {
        assert!(status == Some(66) && said.contains("owm.toml") && said.contains("did you mean own.toml?"), "{said}");
    }
    let (status, text) = said(&["--config", "."], &[]);
    assert_eq!(status, Some(66), "{text}");
    fs::create_dir_all(home.file()).unwrap();
    assert_eq!(said(&[], &[]).0, Some(66));
}

#[test]
fn wrong_variables_are_refused() {
    let home = Home::new("settings_variables");
    let mut page = String::new();
    for (variable, value) in [
        ("IXC_RAW", "yes"),
        ("IXC_VERBOSE", "256"),
        ("IXC_TEMP", "hot"),
        ("IXC_STATS", "xml"),
        ("IXC_QUEUE_DEPTH", "0"),
        ("IXC_EXPERTS", "no"),
        ("IXC_MEMORY", ""),
    ] {
        let output = home.output(&["run", "-p", "x", "-n", "1"], &[(variable, value)]);
        assert_eq!(output.status.code(), Some(2), "{variable}");
        page += &stderr(&output);
    }
    insta::assert_snapshot!("wrong_variables", page);
    // An option on the command line replaces a wrong variable.
    home.stdout(&["run", "-p", "x", "-n", "1", "--temp", "0"], &[("IXC_TEMP", "hot")]);
}

#[test]
fn doctor_shows_values_with_their_sources() {
    let home = Home::new("settings_doctor");
    home.write(
        "threads = 8\nverbose = 2\nmemory = \"24GiB\"\nexperts = \"map\"\n\n[serve]\nport = 9000\napi-key = \"secret\"\nallowed-host = [\"a\", \"b\"]\n\n\
         [kernel.tune]\nrepetitions = 1\n",
    );
    let variables = [("IXC_MEMORY", "6GiB"), ("IXC_JSON", "0"), ("IXC_RAW", "maybe")];
    let text = home.stdout(&["doctor", "--no-bandwidth", "-q"], &variables);
    let (_, settings) = text.split_once("config     ").unwrap();
    insta::assert_snapshot!("doctor", home.without_path(&format!("config     {settings}")));
    let facts = home.stdout(&["doctor", "--no-bandwidth", "-q", "--json"], &variables);
    let facts: Json = serde_json::from_str(&facts).unwrap();
    assert_eq!(facts["config"], json!({"path": home.file(), "exists": true}));
    let rows = facts["settings"].as_array().unwrap();
    let row = |option: &str| rows.iter().find(|row| row["option"] == option).unwrap();
    assert_eq!((&row("port")["command"], &row("port")["line"]), (&json!("serve"), &json!(7)));
    assert_eq!((&row("memory")["value"], &row("memory")["variable"]), (&json!("6GiB"), &json!("IXC_MEMORY")));
    assert_eq!(row("no-bandwidth")["source"], "command line");
    assert_eq!(row("api-key")["value"], "(hidden)");
    // If there is no configuration file, its path is shown.
    let missing = Home::new("settings_doctor_missing");
    let text = missing.stdout(&["doctor", "--no-bandwidth"], &[]);
    let path = missing.file();
    assert!(text.contains(&format!("config     {} (no such file)\n", Path::new(&path).display())), "{text}");
    assert!(missing.stdout(&["doctor", "--no-bandwidth", "--config", "none"], &[]).contains("config     none\n"));
}
