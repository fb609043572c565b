//! The cache of compiled plans, and `ixc cache`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;

use crate::support::{demo_model, ixc, scratch, stderr, stdout};

const READ: &str = "plan read from the cache";
const WRITTEN: &str = "plan written to the cache";

/// A user with a model and an empty cache folder.
struct User {
    folder: PathBuf,
    model: PathBuf,
}

impl User {
    fn new(name: &str) -> User {
        let folder = scratch(&format!("plan_cache_{name}"));
        let model = folder.join("model.gguf");
        fs::copy(demo_model(), &model).unwrap();
        User { folder, model }
    }

    fn ixc(&self, arguments: &[&str]) -> Command {
        let mut command = ixc(arguments);
        command.env_remove("IXC_NO_CACHE").env("XDG_CACHE_HOME", &self.folder);
        command
    }

    /// Returns a command that generates a text with the model, and prints log lines.
    fn run_command(&self, more: &[&str]) -> Command {
        let model = self.model.to_str().unwrap();
        let text = ["run", model, "--raw", "-p", "The borrow checker", "-n", "6", "--temp", "0", "-t", "1", "-v"];
        self.ixc(&[&text[..], more].concat())
    }

    /// Runs the model. Returns the text and the log.
    #[track_caller]
    fn run(&self, more: &[&str]) -> (String, String) {
        succeeded(self.run_command(more).output().unwrap())
    }

    fn plans(&self) -> PathBuf {
        self.folder.join("ixc/plans")
    }

    fn list(&self) -> Json {
        serde_json::from_str(&stdout(self.ixc(&["cache", "ls", "--json"]))).unwrap()
    }

    fn count(&self) -> usize {
        self.list()["plans"].as_array().unwrap().len()
    }

    /// Returns the paths of cached files with this extension.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.plans()).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
        let mut paths: Vec<PathBuf> = entries.unwrap_or_default();
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        paths
    }

    /// Returns a text without paths, ids, sizes and times, which differ between runs.
    fn without_details(&self, text: &str) -> String {
        let text = text.replace(self.folder.to_str().unwrap(), "HOME");
        let words = |line: &str| {
            let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
            let plain = |word: &str| match word.len() {
                16 if word.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID".to_owned(),
                20 if word.ends_with('Z') => "TIME".to_owned(),
                _ if is_number(word) && word.contains('.') => "SIZE".to_owned(),
                _ => word.to_owned(),
            };
            line.split_whitespace().map(plain).collect::<Vec<_>>().join(" ")
        };
        text.lines().map(words).collect::<Vec<_>>().join("\n")
    }
}

#[track_caller]
fn succeeded(output: Output) -> (String, String) {
    assert!(output.status.success(), "{}", stderr(&output));
    (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
}

#[test]
fn second_start_compiles_nothing() {
    let user = User::new("second");
    let (text, log) = user.run(&[]);
    assert!(log.contains(WRITTEN) && log.contains("model read") && !log.contains(READ), "{log}");
    let (again, log) = user.run(&[]);
    assert!(log.contains(READ) && !log.contains("model read") && !log.contains("plan made"), "{log}");
    assert_eq!(again, text);
    // After a model is moved, its cached plan is still used, and the run does not need the old
    // path.
    let moved = User { folder: user.folder.clone(), model: user.folder.join("moved.gguf") };
    fs::rename(&user.model, &moved.model).unwrap();
    let (again, log) = moved.run(&[]);
    assert!(log.contains(READ) && again == text, "{log}");
    assert_eq!(moved.count(), 1);
}

#[test]
fn other_commands_use_the_cached_plan_of_the_same_options() {
    let user = User::new("commands");
    let model = user.model.to_str().unwrap();
    let out = user.folder.join("out.npy");
    user.run(&[]);
    let logits = ["logits", model, "--tokens", "1,2,3", "-t", "1", "-v", "-o", out.to_str().unwrap()];
    let before = fs::read(&out).ok();
    let (_, log) = succeeded(user.ixc(&[&logits[..], &["--no-cache"]].concat()).output().unwrap());
    assert!(!log.contains(READ) && before.is_none(), "{log}");
    let expected = fs::read(&out).unwrap();
    let (_, log) = succeeded(user.ixc(&[&logits[..], &["--force"]].concat()).output().unwrap());
    assert!(log.contains(READ), "{log}");
    assert!(fs::read(&out).unwrap() == expected);
    let (_, log) = succeeded(user.ixc(&["embed", model, "-p", "text", "-t", "1", "-v"]).output().unwrap());
    assert!(log.contains(WRITTEN) && !log.contains(READ), "{log}");
    assert_eq!(user.count(), 2);
}

#[test]
fn changed_model_or_option_misses() {
    let user = User::new("changed");
    let (text, _) = user.run(&[]);
    for more in [&["--no-pack"][..], &["--target", "portable"], &["--experts", "map"]] {
        let (_, log) = user.run(more);
        assert!(log.contains(WRITTEN) && !log.contains(READ), "{more:?}: {log}");
        let (_, log) = user.run(more);
        assert!(log.contains(READ), "{more:?}: {log}");
    }
    assert_eq!(user.count(), 4);
    // Options that change only the run use the same cached plan.
    assert!(user.run(&["-c", "64", "--no-check"]).1.contains(READ));
    // The plan of an edited stage or kernel is never cached.
    let stage = user.folder.join("fused.ix");
    let dump = user.ixc(&["dump", user.model.to_str().unwrap(), "--after", "fuse"]).output().unwrap();
    fs::write(&stage, dump.stdout).unwrap();
    let (_, log) = user.run(&["--start-from", stage.to_str().unwrap()]);
    assert!(!log.contains(READ) && !log.contains(WRITTEN), "{log}");
    // The file is written again with the same bytes.
    let bytes = fs::read(&user.model).unwrap();
    fs::remove_file(&user.model).unwrap();
    fs::write(&user.model, bytes).unwrap();
    let (again, log) = user.run(&[]);
    assert!(log.contains(WRITTEN) && !log.contains(READ) && again == text, "{log}");
}

#[test]
fn streamed_and_resident_plans_are_chosen_by_memory() {
    let user = User::new("memory");
    let (text, _) = user.run(&[]);
    let refused = user.run_command(&["--memory", "1MiB"]).output().unwrap();
    assert!(!refused.status.success());
    // The budget has memory for everything except the experts, with any allocator.
    let budget = |mib: u64| ["--memory".to_owned(), format!("{mib}MiB")];
    let fits = |mib: u64| user.run_command(&[&budget(mib)[0], &budget(mib)[1]]).output().unwrap().status.success();
    let least = (1..).map(|step| step * 8).find(|mib| fits(*mib)).unwrap();
    for more in [least, 1 << 20] {
        let more = budget(more);
        user.run(&[&more[0], &more[1]]);
        let (again, log) = user.run(&[&more[0], &more[1]]);
        assert!(log.contains(READ) && !log.contains("plan made") && again == text, "{more:?}: {log}");
    }
    let listed = user.list();
    let streamed = listed["plans"].as_array().unwrap().iter().filter(|plan| plan["streamed"] == true).count();
    assert_eq!((streamed, user.count()), (1, 2), "{listed}");
}

#[test]
fn damaged_plan_is_compiled_again_with_a_warning() {
    let user = User::new("damaged");
    let (text, _) = user.run(&[]);
    for extension in ["ixp", "json"] {
        let path = user.files(extension).remove(0);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (again, log) = user.run(&[]);
        assert!(log.contains("a cached plan cannot be read, and the model is compiled again"), "{log}");
        assert!(log.contains(WRITTEN) && again == text, "{log}");
        assert!(user.run(&[]).1.contains(READ));
    }
}

#[test]
fn folder_that_cannot_be_written_gives_a_warning() {
    let user = User::new("unwritable");
    let warning = "the next start compiles it again";
    let file = user.folder.join("file");
    fs::write(&file, "x").unwrap();
    let below = file.join("plans");
    for folder in [below.to_str().unwrap(), "/proc/ixc-plans"] {
        let (text, log) = user.run(&["--cache-dir", folder]);
        assert!(!text.is_empty() && log.contains(warning) && log.contains(folder), "{log}");
    }
    // Cached plans in a folder that became read-only are still used.
    let (text, _) = user.run(&[]);
    fs::set_permissions(user.plans(), fs::Permissions::from_mode(0o500)).unwrap();
    let (again, log) = user.run(&[]);
    assert!(log.contains(READ) && again == text, "{log}");
    let (_, log) = user.run(&["--no-pack"]);
    // Root may write to any folder.
    let is_root = fs::write(user.plans().join("probe"), "").is_ok();
    assert!(log.contains(if is_root { WRITTEN } else { warning }), "{log}");
    fs::set_permissions(user.plans(), fs::Permissions::from_mode(0o700)).unwrap();
    // A folder to which other users may write is not used.
    fs::set_permissions(user.plans(), fs::Permissions::from_mode(0o777)).unwrap();
    let (_, log) = user.run(&["--target", "portable"]);
    assert!(log.contains(warning) && log.contains("other users can write to"), "{log}");
    assert!(!user.run(&[]).1.contains(READ));
}

#[test]
fn processes_share_the_cache() {
    let user = User::new("processes");
    let start = |_| {
        let mut command = user.run_command(&[]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = (0..4).map(start).collect();
    let ended = running.into_iter().map(|child| succeeded(child.wait_with_output().unwrap()));
    let (texts, logs): (Vec<String>, Vec<String>) = ended.unzip();
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]));
    // `bytes=0` means that another process has written the plan.
    let written = logs.iter().filter(|log| log.contains(WRITTEN) && !log.contains("bytes=0")).count();
    assert_eq!(written, 1, "{logs:?}");
    assert_eq!((user.files("ixp").len(), user.files("json").len(), user.files("part").len()), (1, 1, 0));
    assert!(user.run(&[]).1.contains(READ));
}

#[test]
fn cache_keeps_its_limit() {
    let user = User::new("limit");
    for pack in [&[][..], &["--no-pack"], &["--target", "portable"]] {
        user.run(pack);
    }
    let bytes =
        |list: &Json| list["plans"].as_array().unwrap().iter().map(|plan| plan["bytes"].as_u64().unwrap()).sum();
    let all: u64 = bytes(&user.list());
    let limit = (all - 1).to_string();
    // Using the first plan again makes it the most recently used one.
    assert!(user.run(&[]).1.contains(READ));
    let newest = user.list()["plans"][0]["id"].clone();
    let (_, log) = succeeded(user.ixc(&["cache", "gc", "--cache-limit", &limit]).output().unwrap());
    assert!(log.is_empty(), "{log}");
    let left = user.list();
    assert!(left["plans"].as_array().unwrap().len() == 2 && left["plans"][0]["id"] == newest, "{left}");
    // A run applies the limit, also if it comes from a variable.
    let mut command = user.run_command(&["--no-pack"]);
    let (_, log) = succeeded(command.env("IXC_CACHE_LIMIT", &limit).output().unwrap());
    assert!(log.contains(WRITTEN) && bytes(&user.list()) < all && user.count() == 2, "{log}");
    // If no plan fits the limit, the run prints a warning.
    let (_, log) = user.run(&["--no-pack", "--defer", "1", "--cache-limit", "1KiB"]);
    assert!(log.contains("the limit of the plan cache is 1 KiB"), "{log}");
}

#[test]
fn cache_can_be_off() {
    let user = User::new("off");
    for (arguments, variables) in [(&["--no-cache"][..], &[][..]), (&[], &[("IXC_NO_CACHE", "1")])] {
        let mut command = user.run_command(arguments);
        let (_, log) = succeeded(command.envs(variables.iter().copied()).output().unwrap());
        assert!(!log.contains(WRITTEN) && !user.plans().exists(), "{log}");
    }
    let config = user.folder.join("config.toml");
    let run = |text: &str| {
        fs::write(&config, text).unwrap();
        user.run(&["--config", config.to_str().unwrap()]).1
    };
    assert!(!run("no-cache = true").contains(WRITTEN) && !user.plans().exists());
    let other = user.folder.join("elsewhere");
    assert!(run(&format!("[run]\ncache-dir = {:?}", other.to_str().unwrap())).contains(WRITTEN));
    assert!(other.join("lock").exists() && !user.plans().exists());
    // The plan of the demo model is not cached, because the model is not a file and compiles very
    // fast.
    let (_, log) = succeeded(user.ixc(&["run", "demo", "-p", "x", "-n", "1", "-v"]).output().unwrap());
    assert!(!log.contains(WRITTEN) && !user.plans().exists(), "{log}");
}

#[test]
fn plans_are_listed_and_removed() {
    let user = User::new("listed");
    let empty = stdout(user.ixc(&["cache", "ls"]));
    assert!(empty.starts_with("0 plans, 0 B of at most ") && empty.contains("ixc/plans"), "{empty}");
    user.run(&["--target", "portable"]);
    user.run(&["--target", "portable", "--experts", "map"]);
    let listing = user.without_details(&stdout(user.ixc(&["cache", "ls", "--cache-limit", "10MiB"])));
    insta::assert_snapshot!("listing", listing);
    let list = user.list();
    assert_eq!(list["schema"], "ixc.cache.v1");
    let plan = &list["plans"][0];
    assert_eq!(Path::new(plan["model"].as_str().unwrap()), user.model);
    let id = plan["id"].as_str().unwrap().to_owned();
    let refused = user.ixc(&["cache", "rm", "none.gguf"]).output().unwrap();
    assert_eq!((refused.status.code(), user.count()), (Some(2), 2));
    assert_eq!(
        stderr(&refused),
        "error: no cached plan has the id or the model file none.gguf; `ixc cache ls` lists all plans\n"
    );
    let removed = stdout(user.ixc(&["cache", "rm", &id[..8]]));
    assert!(removed.starts_with("removed 1 plan, ") && user.count() == 1, "{removed}");
    let mut relative = user.ixc(&["cache", "rm", "model.gguf"]);
    relative.current_dir(&user.folder);
    assert!(stdout(relative).starts_with("removed 1 plan, ") && user.count() == 0);
    user.run(&[]);
    assert!(stdout(user.ixc(&["cache", "rm", "--everything"])).starts_with("removed 1 plan, "));
    assert_eq!((user.count(), user.files("ixp").len(), user.files("json").len()), (0, 0, 0));
    assert_eq!(user.ixc(&["cache", "rm"]).output().unwrap().status.code(), Some(2));
    let doctor = stdout(user.ixc(&["doctor", "--no-bandwidth", "--cache-limit", "5MiB"]));
    assert!(doctor.contains("plan cache 0 plans, 0 B of at most 5 MiB\n"), "{doctor}");
}
