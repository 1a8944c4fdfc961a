//! Lines broken between words.

/// A label is at most so long; what is further to the right is a sentence with two spaces in it.
const LABEL: usize = 32;
/// What hangs under a label has at least so many columns, or hangs under the line's beginning.
const NARROWEST: usize = 24;

/// `text` with every line of more than `width` columns broken between words. What follows hangs under the
/// value of a line `label  value`, and under the beginning of any other. A word that is too long stays whole:
/// a path or a command is copied from it.
pub fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if line.chars().count() <= width {
            wrapped.push_str(line);
        } else {
            one(line, width, &mut wrapped);
        }
        wrapped.push_str(end);
    }
    wrapped
}

fn one(line: &str, width: usize, wrapped: &mut String) {
    let indent = hanging(line, width);
    let (mut rest, mut begins) = (line, 0);
    loop {
        let room = width.saturating_sub(begins).max(1);
        // Spaces at which this line could end, behind its label.
        let spaces = rest.chars().take_while(|c| *c == ' ').count();
        let label = if begins == 0 { indent.max(spaces) } else { 0 };
        // A number and its sign of per cent belong together.
        let breaks = rest
            .char_indices()
            .enumerate()
            .filter(|(place, (at, c))| *c == ' ' && *place > label && !rest[*at..].starts_with(" %"));
        let mut last = None;
        for (place, (at, _)) in breaks {
            if place > room && last.is_some() {
                break;
            }
            last = Some(at);
            if place > room {
                break;
            }
        }
        let Some(at) = last.filter(|_| rest.chars().count() > room) else { break };
        wrapped.push_str(rest[..at].trim_end());
        rest = rest[at..].trim_start();
        wrapped.push('\n');
        wrapped.extend(std::iter::repeat_n(' ', indent));
        begins = indent;
    }
    wrapped.push_str(rest);
}

/// Columns that the second and further lines of `line` are moved to the right by.
fn hanging(line: &str, width: usize) -> usize {
    let indent = line.chars().take_while(|c| *c == ' ').count();
    let body = line.trim_start();
    let label = body.find("  ").map(|end| (body[..end].chars().count(), &body[end..]));
    let value = label.map(|(label, rest)| label + rest.chars().take_while(|c| *c == ' ').count());
    match value {
        Some(value) if value <= LABEL && indent + value + NARROWEST <= width => indent + value,
        _ if indent + NARROWEST <= width => indent,
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
    fn a_value_hangs_under_itself() {
        let text = "CUDA   not found, and the driver\n";
        assert_eq!(wrap(text, 31), "CUDA   not found, and the\n       driver\n");
        assert_eq!(
            wrap("    a sentence that is indented by four", 30),
            "    a sentence that is\n    indented by four"
        );
    }

    #[test]
    fn no_line_is_wider_and_no_word_is_lost() {
        let text = "label  ".to_owned() + &"word sentence of ä words ".repeat(20);
        for width in 32..90 {
            let wrapped = wrap(&text, width);
            assert!(wrapped.lines().all(|line| line.chars().count() <= width), "{width}: {wrapped}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&wrapped), words(&text));
        }
    }
}
