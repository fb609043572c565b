//! `--download`, tested with a script in place of Hugging Face's program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{demo_model, ixc, scratch, stderr};

/// A user with a folder of programs and an empty cache for Hugging Face's tools.
struct User {
    folder: PathBuf,
}

impl User {
    fn new(name: &str) -> User {
        let folder = scratch(&format!("download_{name}"));
        fs::create_dir_all(folder.join("programs")).unwrap();
        User { folder }
    }

    /// Creates a program that records its arguments, prints text, and then runs `script` in the
    /// folder of the snapshot.
    fn program(&self, name: &str, script: &str) {
        let path = self.folder.join("programs").join(name);
        let text = format!(
            "#!/bin/sh\nset -e\nset -f\necho \"{name} $*\" >> '{0}/calls'\necho on standard output\n\
             echo 'Downloading 100%' >&2\n[ ! -s /dev/stdin ] || exit 9\n\
             at='{0}/hub'/models--org--\"${{2#org/}}\"\n/bin/mkdir -p \"$at/refs\" \"$at/snapshots/abc\"\n\
             printf abc > \"$at/refs/main\"\ncd \"$at/snapshots/abc\"\n{script}\n",
            self.folder.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn ixc(&self, arguments: &[&str]) -> Command {
        let mut command = ixc(arguments);
        command.env("PATH", self.folder.join("programs")).env("HF_HUB_CACHE", self.folder.join("hub"));
        command.env("LLAMA_CACHE", self.folder.join("llama"));
        command
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

const TEXT: [&str; 8] = ["--raw", "-p", "Hello", "-n", "1", "--temp", "0", "-q"];

#[test]
fn missing_model_is_downloaded_once_and_run() {
    let user = User::new("gguf");
    let copy = format!("/bin/cp '{}' tiny-Q4_K_M.gguf", demo_model().display());
    user.program("huggingface-cli", "exit 3");
    user.program("hf", &copy);
    let run =
        |more: &[&str]| user.ixc(&[&["run", "-hf", "org/tiny:q4_k_m"], more, &TEXT[..]].concat()).output().unwrap();
    // Without the option, nothing is downloaded.
    let refused = run(&[]);
    let said = stderr(&refused);
    assert!(refused.status.code() == Some(2) && said.contains("downloads nothing without --download"), "{said}");
    assert!(user.calls().is_empty());
    let first = run(&["--download"]);
    let said = stderr(&first);
    assert!(first.status.success(), "{said}");
    let call = "hf download org/tiny --include *[-._/][Qq]4_[Kk]_[Mm][-.]*gguf";
    assert_eq!(user.calls(), [call]);
    // The program's output is shown as progress. Standard output has only the generated text.
    assert!(said.contains("Downloading 100%") && said.contains("on standard output"), "{said}");
    assert!(said.contains("ixc: hf download org/tiny --include '*[-._/][Qq]4_[Kk]_[Mm][-.]*gguf'\n"), "{said}");
    assert!(!String::from_utf8_lossy(&first.stdout).contains("on standard output"));
    let second = run(&["--download"]);
    assert_eq!((second.stdout, user.calls().len()), (first.stdout, 1));
    // The option may also come from a variable, for another command, with the name of a single
    // file.
    let mut inspect = user.ixc(&["inspect", "hf:org/other/resolve/main/tiny-Q4_K_M.gguf"]);
    let inspected = inspect.env("IXC_DOWNLOAD", "1").output().unwrap();
    assert!(inspected.status.success(), "{}", stderr(&inspected));
    assert_eq!(user.calls()[1], "hf download org/other tiny-Q4_K_M.gguf");
}

#[test]
fn folder_of_safetensors_is_downloaded_with_its_tokenizer() {
    let user = User::new("safetensors");
    user.program("huggingface-cli", "[ \"$4\" != '*.json' ] || printf '{}' > config.json\n[ \"$4\" != 'model*.safetensors' ] || printf x > model.safetensors");
    let output = user.ixc(&["inspect", "org/plain", "--download"]).output().unwrap();
    let said = stderr(&output);
    // The files of the stand-in are not a model: the download succeeds, and reading the files
    // fails.
    assert!(output.status.code() == Some(65) && said.contains("snapshots/abc"), "{said}");
    let expected = ["*.json", "tokenizer*", "*.txt", "*.jinja", "model*.safetensors"]
        .map(|pattern| format!("huggingface-cli download org/plain --include {pattern}"));
    assert_eq!(user.calls(), expected);
}

#[test]
fn failed_download_names_the_command_and_the_expected_file() {
    let user = User::new("fails");
    let run = || {
        let output = user.ixc(&["run", "org/tiny-GGUF", "--download", "-p", "x"]).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, said) = run();
    let by_hand = "hf download org/tiny-GGUF --include '*[-._/][Qq]4_[Kk]_[Mm][-.]*gguf'";
    assert!(status == Some(2) && said.contains("PATH has neither") && said.contains(by_hand), "{said}");
    user.program("hf", "exit 7");
    let (status, said) = run();
    assert!(status == Some(1) && said.contains("failed (exit status: 7)") && said.contains(by_hand), "{said}");
    user.program("hf", "printf x > tiny-Q8_0.txt");
    let (status, said) = run();
    assert!(status == Some(1) && said.contains("lacks a GGUF file with Q4_K_M in its name"), "{said}");
    user.program("hf", "printf x > tiny-Q8_0.gguf");
    let said = stderr(&user.ixc(&["run", "org/tiny-GGUF:Q2_K", "--download", "-p", "x"]).output().unwrap());
    assert!(said.contains("lacks a GGUF file with Q2_K in its name, which has tiny-Q8_0.gguf"), "{said}");
}
