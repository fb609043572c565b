"""Tests of the program `ixc` that the package has."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def run(*arguments, program=(sys.executable, "-m", "ixc")):
    return subprocess.run([*program, *arguments], capture_output=True, text=True)


def installed(folder):
    """Writes the script `ixc` to a folder, as pip installs it, and returns its path."""
    script = Path(folder) / "ixc"
    paths = [os.path.abspath(path) for path in sys.path if path]
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {paths!r}\n"
        "from ixc import _ixc\n"
        f"sys.exit(_ixc.main(['ixc', *sys.argv[1:]], {str(script)!r}))\n"
    )
    script.chmod(0o755)
    return str(script)


class ProgramTest(unittest.TestCase):
    def test_commands_print_and_end_with_their_status(self):
        version = run("--version")
        self.assertEqual((version.returncode, version.stdout.split()[0]), (0, "ixc"))
        wrong = run("nothing")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("nothing", wrong.stderr)
        missing = run("inspect", "missing.gguf")
        self.assertEqual(missing.returncode, 66)

    def test_the_program_generates_the_text_of_the_package(self):
        import ixc

        with ixc.Model(threads=1) as model:
            text = model.generate("The borrow checker", max_tokens=8, temperature=0)
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("run", "demo", "--raw", "-p", "The borrow checker", "-n", "8", "--temp", "0", "-t", "1", "-q")
            result = run(*arguments, program=(installed(folder),))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(text.strip(), result.stdout)

    def test_a_helper_renders_an_untrusted_template(self):
        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder) / "template.jinja"
            template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}[assistant] ")
            arguments = ("run", "demo", "Hi", "--chat-template", str(template), "-n", "4", "--temp", "0", "-q")
            result = run(*arguments, program=(installed(folder),))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_commands_that_start_helpers_name_a_missing_script(self):
        result = run("run", "demo", "-p", "Hi", "-n", "1")
        if result.returncode != 0:
            self.assertEqual(result.returncode, 66)
            self.assertIn("the program `ixc` is not installed", result.stderr)


if __name__ == "__main__":
    unittest.main()
