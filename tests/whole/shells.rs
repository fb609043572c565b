//! Shell completions and manual pages, tested with the shells and with `man` if they are installed.

use std::fs;
use std::process::Command;

use crate::support::{ixc, piped, scratch, stderr, stdout};
use ixc_testing::tools::{BASH, FISH, GROFF, ZSH};

#[test]
fn shells_accept_their_completions() {
    let folder = scratch("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(ixc(["completions", shell]));
        // The words are commands, subcommands, and options of both.
        for word in ["explain", "start-from", "kernel", "diff"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        if ["bash", "fish", "zsh"].contains(&shell) {
            for value in ["native", "avx512", "chatml", "gemv_q4_k"] {
                assert!(script.contains(value), "{shell} completes no {value}");
            }
        }
        // Arguments that take a model's name or a file complete file names.
        if shell == "zsh" {
            assert!(script.contains("{compadd ") && script.contains("; _files}"), "{shell}");
        }
        fs::write(folder.join(shell), script).unwrap();
    }
    for (tool, shell, arguments) in
        [(&BASH, "bash", &["-n"][..]), (&ZSH, "zsh", &["-n"]), (&FISH, "fish", &["--no-execute"])]
    {
        let Some(found) = tool.find("a shell reads its completions") else { continue };
        let output = Command::new(found.program).args(arguments).arg(folder.join(shell)).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {}", stderr(&output));
    }
    // Bash offers exactly the words that exist.
    let Some(bash) = BASH.find("bash completes commands and options") else { return };
    let offered = |words: &[&str]| {
        let program = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                       _ixc ixc \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; echo \"${COMPREPLY[@]}\"";
        let mut command = Command::new(&bash.program);
        command.args(["-c", program]).arg(folder.join("bash")).args(words);
        stdout(command)
    };
    assert_eq!(offered(&["ixc", "expl"]).trim(), "explain");
    assert_eq!(offered(&["ixc", "dump", "--sta"]).trim(), "--stage --start-from");
    assert!(offered(&["ixc", "kernel", "d"]).contains("diff"));
    // Values of options and of positional arguments are offered too.
    for words in [&["ixc", "run", "--target", "av"], &["ixc", "bench", "--target", ""]] {
        assert!(offered(words).contains("avx2"), "{words:?}: {}", offered(words));
    }
    assert!(offered(&["ixc", "run", "--chat-template", "chat"]).contains("chatml"));
    assert!(offered(&["ixc", "kernel", "show", "gemv_q4"]).contains("gemv_q4_k"));
    assert!(offered(&["ixc", "--color", "a"]).contains("always"));
    assert_eq!(ixc(["completions", "tcsh"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn manual_pages_are_of_every_command_and_groff_reads_them() {
    let folder = scratch("man").join("man1");
    let said = stdout(ixc(["man", "-o", folder.to_str().unwrap()]));
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(said.contains(&format!("{} pages", names.len())), "{said}");
    for name in ["ixc.1", "ixc-run.1", "ixc-kernel-show.1", "ixc-man.1"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    assert!(names.len() > 28 && !names.iter().any(|name| name.contains("help")), "{names:?}");
    let page = |words: &[&str]| stdout(ixc([&["man"], words].concat()));
    assert_eq!(page(&["kernel", "show"]), fs::read_to_string(folder.join("ixc-kernel-show.1")).unwrap());
    assert!(page(&[]).contains("EXAMPLES") && page(&["run"]).contains("IXC_THREADS"), "{}", page(&["run"]));
    let refused = ixc(["man", "kernel", "sho"]).output().unwrap();
    assert!(
        refused.status.code() == Some(2) && stderr(&refused).contains("the commands are list, show"),
        "{}",
        stderr(&refused)
    );
    // The command does not write into a folder with files.
    assert_eq!(ixc(["man", "-o", folder.to_str().unwrap()]).output().unwrap().status.code(), Some(2));
    let Some(groff) = GROFF.find("manual pages are read") else { return };
    for name in &names {
        let mut command = Command::new(&groff.program);
        // Turns off overstriking, which prints bold characters as several characters.
        command.args(["-man", "-Tutf8", "-ww", "-P-cbou"]);
        let output = piped(command, &fs::read_to_string(folder.join(name)).unwrap());
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("SYNOPSIS") && text.contains("OPTIONS"), "{name}: {text}");
    }
}
