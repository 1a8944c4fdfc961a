//! Compares many networks, counts their operations, and shrinks those that differ.

use super::{Network, Settings, Subject, Verdict, random_network, read_network, shrink};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use stratus_graph::{Graph, Operation};

/// The variable that sets the networks.
const VARIABLE: &str = "STRATUS_NETWORKS";
/// The maximum number of different problems until a check ends.
const MAX_PROBLEMS: usize = 5;

/// The networks to compare.
#[derive(Clone, Debug)]
pub enum Networks {
    /// Those of these seeds.
    Seeds(Range<u64>),
    /// A network that was printed.
    Given(Box<Graph>, Settings),
}

impl Networks {
    /// Those of the environment variable `STRATUS_NETWORKS`, or of the first `default` seeds.
    ///
    /// # Errors
    /// If its value is neither a number, a range, nor the path of a printed network.
    pub fn from_environment(default: u64) -> Result<Self, String> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(Self::Seeds(0..default)),
        }
    }

    /// Those of a number, a range of seeds such as `200..300`, or a file.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(count) = text.parse() {
            return Ok(Self::Seeds(0..count));
        }
        if let Some((Ok(first), Ok(end))) = text.split_once("..").map(|(a, b)| (a.parse(), b.parse())) {
            return Ok(Self::Seeds(first..end));
        }
        let network = std::fs::read_to_string(text).map_err(|error| {
            format!("{VARIABLE}: `{text}` is neither a number, a range of seeds, nor a file: {error}")
        })?;
        let (graph, settings) = read_network(&network).map_err(|error| format!("{text}: {error}"))?;
        Ok(Self::Given(Box::new(graph), settings))
    }
}

/// The result of comparing many networks.
#[derive(Debug, Default)]
pub struct NetworkReport {
    /// The networks within the tolerances.
    pub agreed: usize,
    /// The networks whose results depend too much on rounding to be compared.
    pub sensitive: usize,
    /// The networks with a loss per pixel, of those that agreed.
    pub pixel_losses: usize,
    /// The layers of each operation in the networks that agreed.
    pub operations: BTreeMap<&'static str, usize>,
    /// The problems, with the smallest networks that have them.
    pub problems: Vec<String>,
    /// The number of networks with each kind of problem: its message without numbers.
    pub kinds: BTreeMap<String, usize>,
}

impl NetworkReport {
    fn add(&mut self, graph: &Graph, verdict: &Verdict) {
        match verdict {
            Verdict::Agrees => {
                self.agreed += 1;
                self.pixel_losses += usize::from(graph.shape(graph.output).0.len() == 3);
                for node in &graph.nodes {
                    *self.operations.entry(node.op.kind()).or_default() += 1;
                }
            }
            Verdict::Sensitive => self.sensitive += 1,
            Verdict::Differs(_) | Verdict::Fails(_) | Verdict::ReferenceFails(_) => {}
        }
    }

    /// Asserts that networks were compared, most of them could be, and none has a problem.
    ///
    /// # Panics
    /// With every problem, or if too few networks could be compared.
    pub fn assert_passed(&self) {
        assert!(self.problems.is_empty(), "{}", self.problems.join("\n\n"));
        assert!(self.agreed > 0 && self.sensitive <= self.agreed / 4, "{self}");
    }
}

impl fmt::Display for NetworkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agreed, sensitive, pixel_losses, operations, kinds, .. } = self;
        writeln!(
            f,
            "{agreed} networks agree ({pixel_losses} with a loss per pixel), {sensitive} are too sensitive \
             to rounding, {} have problems",
            kinds.values().sum::<usize>()
        )?;
        let counts: Vec<String> = operations.iter().map(|(op, count)| format!("{op} {count}")).collect();
        write!(f, "layers: {}", counts.join(", "))
    }
}

/// Compares networks, and shrinks those that have a problem. It ends at the fifth kind of problem.
#[must_use]
pub fn check_networks(subject: &Subject<'_>, networks: &Networks) -> NetworkReport {
    let mut report = NetworkReport::default();
    let seeds = match networks {
        Networks::Seeds(seeds) => seeds.clone(),
        Networks::Given(graph, settings) => {
            let verdict = subject.compare(graph, settings);
            report.add(graph, &verdict);
            report.problems.extend(verdict.problem());
            return report;
        }
    };
    for seed in seeds {
        let network = random_network(seed);
        let verdict = compare(subject, &network);
        if let Ok(graph) = network.graph() {
            report.add(&graph, &verdict);
        }
        if let Some(problem) = verdict.problem() {
            let small = shrink(&network, |smaller| compare(subject, smaller).is_alike(&verdict));
            let small_problem = compare(subject, &small).problem().unwrap_or_default();
            let count = report.kinds.entry(kind(&small_problem)).or_default();
            *count += 1;
            if *count > 1 {
                continue;
            }
            report.problems.push(format!(
                "seed {seed} {problem}\nthe smallest network found with the problem {small_problem}; save it \
                 and set {VARIABLE} to its path to repeat it:\n{}",
                small.text()
            ));
            if report.problems.len() == MAX_PROBLEMS {
                break;
            }
        }
    }
    report
}

/// A message without numbers.
fn kind(problem: &str) -> String {
    problem.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

fn compare(subject: &Subject<'_>, network: &Network) -> Verdict {
    match network.graph() {
        Ok(graph) => subject.compare(&graph, &network.settings),
        Err(error) => Verdict::ReferenceFails(error.to_string()),
    }
}
