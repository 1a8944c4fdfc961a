//! Shortening of layer names to the width of a column, keeping them distinct.

use crate::text::fit;
use std::collections::BTreeMap;

/// The mark for omitted parts.
const ELLIPSIS: &str = "…";

/// Shortens names to at most `width` columns each, by omitting middle parts between `.` and `+`, such as
/// `layer1.0.…relu2`. Names that would become equal are numbered.
#[must_use]
pub fn shorten(names: &[String], width: usize) -> Vec<String> {
    let mut short: Vec<String> = names.iter().map(|name| shorten_one(name, width)).collect();
    let mut equal: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, name) in short.iter().enumerate() {
        equal.entry(name.clone()).or_default().push(at);
    }
    for positions in equal.into_values().filter(|positions| positions.len() > 1) {
        // Names that were equal before stay equal.
        if positions.iter().all(|at| names[*at] == names[positions[0]]) {
            continue;
        }
        for (number, at) in (1..).zip(positions) {
            let mark = format!("~{number}");
            short[at] = shorten_one(&names[at], width.saturating_sub(mark.len())) + &mark;
        }
    }
    short
}

fn shorten_one(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    // Each part with the separator that follows it.
    let parts: Vec<&str> = name.split_inclusive(['.', '+']).collect();
    let length = |parts: &[&str]| parts.iter().map(|part| part.chars().count()).sum::<usize>();
    let available = width.saturating_sub(ELLIPSIS.chars().count());
    let (mut head, mut tail) = (0, 0);
    // The end identifies the layer, the beginning its position in the network: extend both in turn.
    loop {
        let used = length(&parts[..head]) + length(&parts[parts.len() - tail..]);
        let next = |part: &str| used + part.chars().count() <= available;
        if head + tail < parts.len() && tail <= head && next(parts[parts.len() - tail - 1]) {
            tail += 1;
        } else if head + tail < parts.len() && next(parts[head]) {
            head += 1;
        } else {
            break;
        }
    }
    if head + tail == 0 {
        return fit(name, width);
    }
    parts[..head]
        .iter()
        .copied()
        .chain([ELLIPSIS])
        .chain(parts[parts.len() - tail..].iter().copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(names: &[&str], width: usize) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let short = shorten(&names, width);
        assert!(short.iter().all(|name| name.chars().count() <= width), "{short:?}");
        short
    }

    #[test]
    fn omits_middle_parts() {
        assert_eq!(short(&["fc"], 8), ["fc"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 24), ["layer1.0.…layer1.0.relu2"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 18), ["layer1.0.…0.relu2"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 9), ["…relu2"]);
        // A name without parts is truncated.
        assert_eq!(short(&["abcdefghijkl"], 7), ["abc..kl"]);
    }

    #[test]
    fn shortened_names_stay_distinct() {
        let names =
            ["inception3a.branch1.conv.x", "inception3a.branch2.conv.x", "inception3a.branch3.conv.x"];
        let short = short(&names, 16);
        assert_eq!(short.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{short:?}");
        // Equal names stay equal.
        let same = shorten(&["a.b.c.d.e.f.g".into(), "a.b.c.d.e.f.g".into()], 8);
        assert_eq!(same[0], same[1]);
    }
}
