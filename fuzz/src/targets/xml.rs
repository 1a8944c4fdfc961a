//! Experiments in XML.

use std::path::Path;
use stratus_experiment::XmlExperiment;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "xml",
    run,
    seeds: seeds::xml,
    dictionary: &[
        "<",
        "/>",
        "<?xml version=\"1.0\"?>",
        "<!DOCTYPE",
        "<![CDATA[",
        "&amp;",
        "&#x",
        "<experiment>",
        "remote",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    if let Ok(read) = XmlExperiment::parse(&String::from_utf8_lossy(data), Path::new("experiment.xml")) {
        let _ = read.experiment(&[]);
    }
}
