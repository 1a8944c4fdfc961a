//! The cuts of a network into stages, and the activations that a stage recomputes.

use crate::pipeline::{CLIP, ROOM, evaluation, train_in};
use crate::training::{PARTS, branches, of_part, with_updates};
use stratus_engine::passes::recompute::{live_bytes, recompute};
use stratus_engine::passes::stage::PipelinePartition;
use stratus_engine::passes::step_costs::{LayerTimes, StepCosts};
use stratus_engine::{Phase, Precision, Program};
use stratus_graph::{Graph, zoo};

/// Sixteen convolutions, whose activations are larger than their parameters.
fn resnet() -> Graph {
    let config = zoo::ModelConfig { input: [3, 16, 16], classes: 4, width: Some(8) };
    (zoo::find("resnet18_cifar").unwrap().build)(&config).unwrap()
}

/// The layers of the forward pass, in order.
fn layers(program: &Program) -> Vec<String> {
    let forward = program.steps.iter().filter(|step| step.phase == Phase::Forward);
    let mut names: Vec<String> = Vec::new();
    for layer in forward.flat_map(|step| step.layers.iter().take(1)) {
        let name = &program.layers[*layer].name;
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// The stages of a network with these costs.
fn cut(graph: &Graph, count: usize, costs: &StepCosts) -> Vec<Program> {
    let train = of_part(graph, Precision::F32);
    let evaluate = evaluation(graph, Precision::F32);
    let partition = PipelinePartition::balanced(&train, &evaluate, count, ROOM, costs).unwrap();
    (0..count).map(|index| partition.stage(&train, index).unwrap()).collect()
}

#[test]
fn a_network_is_cut_where_its_measured_times_say() {
    let graph = resnet();
    let whole = of_part(&graph, Precision::F32);
    let names = layers(&whole);
    let first_stage = |slow: std::ops::Range<usize>| {
        let seconds = |at: usize| if slow.contains(&at) { 1.0 } else { 0.02 };
        let times = names.iter().enumerate().map(|(at, name)| (name.clone(), seconds(at)));
        let costs = StepCosts::measured(&whole, &LayerTimes::of_layers(times));
        let stages = cut(&graph, 2, &costs);
        assert_eq!(stages.iter().map(|stage| layers(stage).len()).sum::<usize>(), names.len());
        layers(&stages[0]).len()
    };
    // The cut is among the layers that take the time.
    let quarter = names.len() / 4;
    for slow in [0..quarter, quarter..2 * quarter, names.len() - quarter..names.len()] {
        let cut = first_stage(slow.clone());
        assert!(slow.contains(&cut), "{cut} of {} layers, {slow:?} are slow", names.len());
    }
}

#[test]
fn unknown_layers_and_impossible_times_do_not_count() {
    let graph = branches();
    let whole = of_part(&graph, Precision::F32);
    let name = layers(&whole).swap_remove(1);
    let expected = cut(&graph, 2, &StepCosts::estimated());
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let times = LayerTimes::of_layers([("no such layer".to_owned(), 9.0), (name.clone(), seconds)]);
        let costs = StepCosts::measured(&whole, &times);
        assert!(!costs.is_measured(), "{seconds}");
        assert_eq!(cut(&graph, 2, &costs), expected, "{seconds}");
    }
}

#[test]
fn layer_times_are_those_of_one_part() {
    let program = with_updates(&of_part(&branches(), Precision::F32), PARTS, None);
    let seconds = vec![1.0; program.steps.len()];
    let times = LayerTimes::new(&program, &seconds, PARTS);
    // Waiting for other workers is the time of no layer.
    assert!(program.layers.iter().any(|layer| layer.name == "exchange"));
    assert!(times.layers().all(|(layer, _)| layer != "exchange"));
    let counted =
        |step: &&stratus_engine::Step| step.phase != Phase::Communication && !step.layers.is_empty();
    let expected: f64 = program
        .steps
        .iter()
        .filter(counted)
        .map(|step| match step.phase {
            Phase::Update => 1.0 / PARTS as f64,
            _ => 1.0,
        })
        .sum();
    let total: f64 = times.layers().map(|(_, seconds)| seconds).sum();
    assert!((total - expected).abs() < 1e-9, "{total} and {expected}");
}

/// A stage recomputes as little as its limit requires, the cheapest activations first, and its results stay
/// the same.
#[test]
fn a_stage_recomputes_only_what_its_limit_requires() {
    let costs = StepCosts::estimated();
    for graph in [resnet(), branches()] {
        let stages = cut(&graph, 4, &costs);
        let first = &stages[0];
        let (whole, least) = (live_bytes(first), live_bytes(&recompute(first, 0).unwrap()));
        assert!(least < whole, "{}: {least} of {whole}", graph.name);
        let mut shares = Vec::new();
        for part in [0, 1, 4, 16] {
            let limit = whole - (whole - least) * part / 16;
            let less = recompute(first, limit).unwrap();
            assert!(live_bytes(&less) <= limit, "{}: {} of {limit}", graph.name, live_bytes(&less));
            let cost = costs.of_program(&less);
            assert!((cost.total - cost.recomputed - costs.of_program(first).total).abs() < 1e-6 * cost.total);
            shares.push(cost.recomputed);
        }
        assert!(shares[0] == 0.0 && shares[1] > 0.0 && shares.is_sorted(), "{}: {shares:?}", graph.name);
        assert!(shares[1] < shares[3] / 2.0, "{}: {shares:?}", graph.name);
        let updated = |stages: &[Program]| -> Vec<Program> {
            stages.iter().map(|stage| with_updates(stage, 1, CLIP)).collect()
        };
        let limit = whole - (whole - least) / 4;
        let mut limited = stages.clone();
        limited[0] = recompute(first, limit).unwrap();
        assert!(limited[0].steps.len() > first.steps.len());
        assert_eq!(train_in(&updated(&limited), 1), train_in(&updated(&stages), 1), "{}", graph.name);
    }
}
