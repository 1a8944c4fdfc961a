//! Wraps lines between words.

/// The maximum width of a label; a later double space belongs to a sentence.
const MAX_LABEL_COLUMNS: usize = 32;
/// The minimum width left for text that is indented to its value; otherwise it is indented like its line.
const MIN_HANGING_COLUMNS: usize = 24;

/// Wraps every line of `text` that is longer than `width` columns, between words.
///
/// Later lines are indented to the value of a line `label  value`, else to the start of the line. A word that
/// is too long stays whole: users copy paths and commands.
pub fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if line.chars().count() <= width {
            wrapped.push_str(line);
        } else {
            wrap_line(line, width, &mut wrapped);
        }
        wrapped.push_str(end);
    }
    wrapped
}

fn wrap_line(line: &str, width: usize, wrapped: &mut String) {
    let indent = hanging_indent(line, width);
    let (mut rest, mut start) = (line, 0);
    loop {
        let room = width.saturating_sub(start).max(1);
        // The line may end at any space after its label.
        let spaces = rest.chars().take_while(|c| *c == ' ').count();
        let label = if start == 0 { indent.max(spaces) } else { 0 };
        // A number and its percent sign stay together.
        let breaks = rest
            .char_indices()
            .enumerate()
            .filter(|(column, (at, c))| *c == ' ' && *column > label && !rest[*at..].starts_with(" %"));
        let mut last = None;
        for (column, (at, _)) in breaks {
            if column > room && last.is_some() {
                break;
            }
            last = Some(at);
            if column > room {
                break;
            }
        }
        let Some(at) = last.filter(|_| rest.chars().count() > room) else { break };
        wrapped.push_str(rest[..at].trim_end());
        rest = rest[at..].trim_start();
        wrapped.push('\n');
        wrapped.extend(std::iter::repeat_n(' ', indent));
        start = indent;
    }
    wrapped.push_str(rest);
}

/// The indentation of the second and later lines of `line`, in columns.
fn hanging_indent(line: &str, width: usize) -> usize {
    let indent = line.chars().take_while(|c| *c == ' ').count();
    let body = line.trim_start();
    let label = body.find("  ").map(|end| (body[..end].chars().count(), &body[end..]));
    let value = label.map(|(label, rest)| label + rest.chars().take_while(|c| *c == ' ').count());
    match value {
        Some(value) if value <= MAX_LABEL_COLUMNS && indent + value + MIN_HANGING_COLUMNS <= width => {
            indent + value
        }
        _ if indent + MIN_HANGING_COLUMNS <= width => indent,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three\nfour\n", 8), "one two\nthree\nfour\n");
        assert_eq!(wrap("one two", 8), "one two");
        assert_eq!(wrap("", 8), "");
        assert_eq!(wrap("it is 60 % of", 8), "it is\n60 % of");
        // A word that does not fit stays whole.
        assert_eq!(wrap("see runs/a/very/long/path there", 10), "see\nruns/a/very/long/path\nthere");
        assert_eq!(wrap("  runs/a/very/long/path", 10), "  runs/a/very/long/path");
    }

    #[test]
    fn wrapped_value_is_indented_to_its_column() {
        let text = "CUDA   not found, and the driver\n";
        assert_eq!(wrap(text, 31), "CUDA   not found, and the\n       driver\n");
        assert_eq!(
            wrap("    a sentence that is indented by four", 30),
            "    a sentence that is\n    indented by four"
        );
    }

    #[test]
    fn no_line_exceeds_the_width_and_no_word_is_lost() {
        let text = "label  ".to_owned() + &"word sentence of ä words ".repeat(20);
        for width in 32..90 {
            let wrapped = wrap(&text, width);
            assert!(wrapped.lines().all(|line| line.chars().count() <= width), "{width}: {wrapped}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&wrapped), words(&text));
        }
    }
}
