//! Pruned networks train.

use super::{half_of_units, model, settings, zoo_network};
use stratus_conformance::networks::Data;
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Choices, Clock, DType, Precision, Role, Session};
use stratus_graph::zoo::NETWORKS;
use stratus_optimise::Model;
use stratus_optimise::prune::{channel_groups, remove};
use stratus_testing::sample::sample;

/// Plain descent.
const SGD: Optimiser = Optimiser::Sgd(SgdUpdate {
    momentum: 0.0,
    weight_decay: 0.0,
    nesterov: false,
    rate_factor: 1.0,
    loss_scaled: false,
});

/// The losses of two training steps with the same two images, and the names of weights that the first did not
/// change. A bias before a batch norm has no gradient.
fn train(model: &Model) -> ([f64; 2], Vec<String>) {
    let settings = stratus_conformance::networks::Settings { batch: 2, ..settings(1) };
    let data = Data::new(&model.graph, &settings);
    let program = lower(&model.graph, Mode::Train, Precision::F32, settings.batch).unwrap();
    let program = update(&differentiate(&program).unwrap(), SGD).unwrap();
    let mut persistent = Persistent::default();
    let plan =
        Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::on_backend(&ReferenceBackend, vec![plan], persistent).unwrap();
    session.fill_arena(0).unwrap();
    for (name, values) in &model.values {
        session.write(name, values).unwrap();
    }
    let mut inputs = session.inputs(0).unwrap();
    let dtype = program.values.iter().find(|value| value.role == Role::Images).unwrap().dtype;
    for (position, &value) in data.images.iter().enumerate() {
        dtype.store(inputs.images.as_mut_slice(), position, value);
    }
    for (position, &label) in data.labels.iter().enumerate() {
        DType::I32.store(inputs.labels.as_mut_slice(), position, f64::from(label));
    }
    let mut step = |session: &mut Session, iteration| {
        let scalars = IterationScalars { learning_rate: 1e-3, iteration, seed: 1 };
        session.set_iteration_scalars(scalars).unwrap();
        let mut clock = Clock::disabled(session.slots(0));
        let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
        session.run(0, images, labels, &mut clock, 0).unwrap();
        session.metrics().loss
    };
    let first = step(&mut session, 0);
    let weights = model.graph.parameters.iter().filter(|parameter| parameter.shape.len() > 1);
    let unchanged = weights.filter(|p| session.read(&p.name).unwrap() == model.values[&p.name]);
    let unchanged = unchanged.map(|parameter| parameter.name.clone()).collect();
    ([first, step(&mut session, 1)], unchanged)
}

#[test]
fn pruned_networks_of_the_zoo_train() {
    for network in sample(NETWORKS, 3, 0) {
        let size = if network.name == "inception_v3" { 299 } else { 64 };
        let graph = zoo_network(network.name, 12, [size, size]);
        let model = model(&graph, &Data::new(&graph, &settings(1)));
        let selection = half_of_units(&channel_groups(&graph).unwrap(), 2, |_| true);
        let pruned = remove(&model, &selection).unwrap();
        let (losses, unchanged) = train(&pruned);
        assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[1], "{losses:?}");
        let count = pruned.graph.parameters.iter().filter(|parameter| parameter.shape.len() > 1).count();

        assert!(unchanged.len() * 4 < count, "{}: {unchanged:?} of {count} are unchanged", network.name);
    }
}
