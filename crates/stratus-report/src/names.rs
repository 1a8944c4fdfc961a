//! Names of layers, shortened so that they fit a column and stay different.

use crate::text::fit;
use std::collections::BTreeMap;

/// What stands for what was left out.
const GAP: &str = "…";

/// `names` in at most `width` columns each: parts between `.` and `+` are left out of their middles, such as
/// `layer1.0.…relu2`. Names that would read alike are numbered.
#[must_use]
pub fn shorten(names: &[String], width: usize) -> Vec<String> {
    let mut short: Vec<String> = names.iter().map(|name| one(name, width)).collect();
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, name) in short.iter().enumerate() {
        alike.entry(name.clone()).or_default().push(at);
    }
    for places in alike.into_values().filter(|places| places.len() > 1) {
        // Names that were alike before are no news.
        if places.iter().all(|at| names[*at] == names[places[0]]) {
            continue;
        }
        for (number, at) in (1..).zip(places) {
            let mark = format!("~{number}");
            short[at] = one(&names[at], width.saturating_sub(mark.len())) + &mark;
        }
    }
    short
}

fn one(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    // Each part with what separates it from the next one.
    let parts: Vec<&str> = name.split_inclusive(['.', '+']).collect();
    let length = |parts: &[&str]| parts.iter().map(|part| part.chars().count()).sum::<usize>();
    let room = width.saturating_sub(GAP.chars().count());
    let (mut head, mut tail) = (0, 0);
    // The end says which layer it is, the beginning where: both grow in turn.
    loop {
        let used = length(&parts[..head]) + length(&parts[parts.len() - tail..]);
        let next = |part: &str| used + part.chars().count() <= room;
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
    parts[..head].iter().copied().chain([GAP]).chain(parts[parts.len() - tail..].iter().copied()).collect()
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
    fn the_middle_is_left_out_by_parts() {
        assert_eq!(short(&["fc"], 8), ["fc"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 24), ["layer1.0.…layer1.0.relu2"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 18), ["layer1.0.…0.relu2"]);
        assert_eq!(short(&["layer1.0.bn2+layer1.0.add+layer1.0.relu2"], 9), ["…relu2"]);
        // A name without parts is cut.
        assert_eq!(short(&["abcdefghijkl"], 7), ["abc..kl"]);
    }

    #[test]
    fn no_two_names_read_alike() {
        let names =
            ["inception3a.branch1.conv.x", "inception3a.branch2.conv.x", "inception3a.branch3.conv.x"];
        let short = short(&names, 16);
        assert_eq!(short.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{short:?}");
        // What is the same stays the same.
        let same = shorten(&["a.b.c.d.e.f.g".into(), "a.b.c.d.e.f.g".into()], 8);
        assert_eq!(same[0], same[1]);
    }
}
