"""Lines of a report: they are printed as they come, and kept."""

import statistics


class Report:
    def __init__(self, path=None):
        self.lines, self.path, self.failures = [], path, []

    def line(self, text=""):
        print(text, flush=True)
        self.lines.append(text)
        if self.path:
            self.path.write_text("\n".join(self.lines) + "\n")

    def title(self, text):
        self.line()
        self.line(f"## {text}")
        self.line()

    def table(self, head, rows):
        self.line("| " + " | ".join(head) + " |")
        self.line("| " + " | ".join("---" for _ in head) + " |")
        for row in rows:
            self.line("| " + " | ".join(str(cell) for cell in row) + " |")

    def check(self, right, what):
        """Writes a requirement, and whether it is met."""
        if not right:
            self.failures.append(what)
        self.line(f"- {'ok' if right else 'FAILED'}: {what}")


def spread(values, digits=2):
    """Returns the median, the smallest and the largest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def cell(text):
    """Escapes text for a table."""
    return text.strip().replace("\n", "⏎").replace("|", "\\|")[:110]
