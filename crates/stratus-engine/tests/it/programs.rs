//! Programs and plans of the digits network: the results of passes, verification errors, and the quality of
//! memory placement.

use crate::common::{digits, fuse, published_digits, session, training_program};
use stratus_engine::ops::{Kernel, KernelSpec, ReluForward};
use stratus_engine::passes::lower::{lower, refresh_copies};
use stratus_engine::program::{Mode, Origin};
use stratus_engine::{Clock, DType, Phase, Precision, Program, Role, Value, ValueId};
use stratus_graph::ops::{BatchNorm2d, Flatten, Linear};
use stratus_graph::{Graph, GraphBuilder, Op, Shape};

#[test]
fn lowered_program() {
    let program = lower(&published_digits(), Mode::Train, Precision::F32, 4).unwrap();
    insta::assert_snapshot!(program.dump());
}

#[test]
fn training_program_in_single_precision() {
    insta::assert_snapshot!(training_program(&published_digits(), Precision::F32, 4).dump());
}

#[test]
fn training_program_in_bf16() {
    let program = training_program(&published_digits(), Precision::Bf16, 4);
    insta::assert_snapshot!(format!("{}{}", program.dump(), refresh_copies(&program).unwrap().dump()));
}

#[test]
fn evaluation_program() {
    let program = fuse(&lower(&published_digits(), Mode::Evaluate, Precision::F32, 4).unwrap()).unwrap();
    insta::assert_snapshot!(program.dump());
}

#[test]
fn placement_is_close_to_the_lower_bound() {
    let graph = published_digits();
    for precision in [Precision::F32, Precision::Bf16, Precision::F16, Precision::F64] {
        for batch in [1, 4, 64, 100] {
            let train = training_program(&graph, precision, batch);
            let evaluate = fuse(&lower(&graph, Mode::Evaluate, precision, batch).unwrap()).unwrap();
            for program in [train, evaluate] {
                let session = session(&program);
                let plan = session.plan(0);
                plan.verify().unwrap();
                let (bytes, bound) = (plan.transient_bytes, plan.transient_lower_bound);
                assert!(bound > 0 && bytes >= bound);
                assert!(
                    bytes * 100 <= bound * 115,
                    "{precision} batch {batch} {:?}: {bytes} bytes, lower bound {bound}",
                    program.mode
                );
                assert_eq!(session.arena_bytes(), plan.persistent_bytes + bytes);
            }
        }
    }
}

/// The kernels, with their layers, of the steps of selected phases.
fn kernels(program: &Program, is: impl Fn(Phase) -> bool) -> Vec<String> {
    let steps = program.steps.iter().filter(|step| is(step.phase));
    steps.map(|step| format!("{} {}", step.kernel.name(), program.layer_name(step))).collect()
}

#[test]
fn backward_pass_stops_at_frozen_layers() {
    for precision in [Precision::F32, Precision::Bf16] {
        let mut graph = published_digits();
        let whole = training_program(&graph, precision, 4);
        graph.freeze(&["layer1", "layer2"]).unwrap();
        let program = training_program(&graph, precision, 4);
        let is_backward =
            |phase| matches!(phase, Phase::BackwardData | Phase::BackwardWeights | Phase::Update);
        for step in kernels(&program, is_backward) {
            assert!(step.contains("layer3") || step.contains("fc"), "{step}");
        }
        // The first trained layer needs no input gradient.
        let data = kernels(&program, |phase| phase == Phase::BackwardData);
        assert_eq!(data, ["linear_backward_data fc", "batch_norm_relu_backward_data layer3.1+layer3.2"]);
        // Running statistics of frozen layers are read and never changed, and no argmax index is stored.
        let touched = |name: &str| {
            program.steps.iter().any(|step| {
                step.updates.iter().chain(&step.outputs).any(|&id| program.value(id).name == name)
            })
        };
        for name in ["layer1.1.running_mean", "layer2.1.running_var", "layer1.0.weight", "layer2.1.bias"] {
            assert!(!touched(name), "{name}");
        }
        assert!(touched("layer3.1.running_mean"));
        assert!(program.values.iter().all(|value| value.dtype != DType::U8), "nothing writes an index");
        let weight = program.find("layer1.0.weight").unwrap();
        assert_eq!(program.optimiser_states_of(weight).count(), 0);
        let [frozen, all] = [&program, &whole].map(|program| session(program).plan(0).clone());
        assert!(
            frozen.transient_bytes < all.transient_bytes && frozen.persistent_bytes < all.persistent_bytes
        );
        // Copies of frozen parameters are refreshed with the others.
        let count = |program: &Program| refresh_copies(program).unwrap().steps.len();
        assert_eq!(count(&program), count(&whole));
        insta::assert_snapshot!(format!("frozen_below_{precision}"), program.dump());
    }
}

#[test]
fn gradients_pass_frozen_layers() {
    let mut graph = published_digits();
    graph.freeze(&["layer2", "fc"]).unwrap();
    let program = training_program(&graph, Precision::F32, 4);
    let updated = kernels(&program, |phase| phase == Phase::Update);
    assert_eq!(updated.len(), 6, "{updated:?}");
    assert!(updated.iter().all(|step| step.contains("layer1") || step.contains("layer3")), "{updated:?}");
    insta::assert_snapshot!(program.dump());
}

#[test]
fn every_trained_parameter_is_updated_once_after_its_last_reader() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let program = training_program(&published_digits(), precision, 4);
        for (id, value) in program.values.iter().enumerate().filter(|(_, v)| v.role == Role::Parameter) {
            let writes = |step: &stratus_engine::Step| step.updates.iter().any(|update| update.0 == id);
            let updates: Vec<usize> =
                (0..program.steps.len()).filter(|&s| writes(&program.steps[s])).collect();
            assert_eq!(updates.len(), 1, "`{}`", value.name);
            let id = ValueId(id);
            for id in [Some(id), program.copy_of(id)].into_iter().flatten() {
                let readers = program.readers(id);
                assert!(readers.max() <= Some(updates[0]), "`{}` is read after its update", value.name);
            }
        }
    }
}

fn broken(change: impl FnOnce(&mut Program)) -> String {
    // A width without stem fusion, so that the first step is a convolution.
    let mut program = training_program(&digits([1, 28, 28], 10, 6), Precision::F32, 4);
    change(&mut program);
    program.verify("test").unwrap_err().to_string()
}

#[test]
fn verification_errors_name_pass_step_layer_and_problem() {
    let twice = broken(|program| {
        let step = program.steps[0].clone();
        program.steps.insert(1, step);
    });
    let early = broken(|program| program.steps.swap(0, 1));
    let shape = broken(|program| {
        let y = program.steps[0].outputs[0].0;
        program.values[y].shape[2] = 27;
    });
    let counts = broken(|program| {
        program.steps[0].inputs.pop();
    });
    let aliased = broken(|program| program.steps[0].inputs[1] = program.steps[0].inputs[0]);
    let external = broken(|program| {
        let mut step = program.steps[0].clone();
        step.kernel = Kernel::from(ReluForward { ceiling: None });
        step.inputs = step.outputs.clone();
        step.outputs = vec![program.find_role(Role::Images).unwrap()];
        program.steps.push(step);
    });
    let names = broken(|program| program.values[1].name = program.values[0].name.clone());
    let nowhere = broken(|program| program.steps[2].layers.clear());
    insta::assert_snapshot!([twice, early, shape, counts, aliased, external, names, nowhere].join("\n"));
}

#[test]
fn verification_rejects_invalid_origins() {
    let change = |change: &dyn Fn(&mut Program, ValueId, ValueId)| {
        broken(|program| {
            let weight = program.find("fc.weight").unwrap();
            let gradient = program.gradient_of(weight).unwrap();
            change(program, weight, gradient);
        })
    };
    let missing = change(&|program, _, gradient| {
        program.values[gradient.0].origin = Some(Origin::Gradient(ValueId(program.values.len())));
    });
    let itself = change(&|program, weight, _| {
        program.values[weight.0].origin = Some(Origin::ComputeCopy(weight));
    });
    let shape = change(&|program, weight, _| {
        let bias = program.find("fc.bias").unwrap();
        program.values[bias.0].origin = Some(Origin::ComputeCopy(weight));
    });
    let second = change(&|program, weight, _| {
        program.add_derived(Origin::Gradient(weight), DType::F32, Role::Transient);
    });
    insta::assert_snapshot!([missing, itself, shape, second].join("\n"));
}

/// Programs written before values had origins can be read; new ones keep origins.
#[test]
fn origins_are_optional_in_files() {
    let program = training_program(&published_digits(), Precision::Bf16, 4);
    let mut written = serde_json::to_value(&program).unwrap();
    assert_eq!(serde_json::from_value::<Program>(written.clone()).unwrap(), program);
    let values = written["values"].as_array_mut().unwrap();
    let removed = values.iter_mut().filter_map(|value| value.as_object_mut().unwrap().remove("origin"));
    assert!(removed.count() > 0);
    let read: Program = serde_json::from_value(written).unwrap();
    assert!(read.values.iter().all(|value| value.origin.is_none()));
    read.verify("test").unwrap();
}

/// Dropping values keeps the relations of the others.
#[test]
fn dropping_values_keeps_origins() {
    let mut program = training_program(&published_digits(), Precision::Bf16, 4);
    let related = |program: &Program| -> Vec<(String, String)> {
        let name_and_source =
            |value: &Value| Some((value.name.clone(), program.value(value.origin?.source()).name.clone()));
        program.values.iter().filter_map(name_and_source).collect()
    };
    let (before, count) = (related(&program), program.values.len());
    // Without the forward pass most activations are dropped, and with them the sources of gradients.
    program.steps.retain(|step| step.phase == Phase::Update);
    program.drop_unused_values();
    let is_left = |name: &str| program.find(name).is_some();
    let expected: Vec<_> =
        before.into_iter().filter(|(value, source)| is_left(value) && is_left(source)).collect();
    assert!(program.values.len() < count && expected.len() > 20, "{expected:?}");
    assert_eq!(related(&program), expected);
}

#[test]
fn session_rejects_inputs_of_the_wrong_size() {
    let program = training_program(&published_digits(), Precision::F32, 4);
    let mut session = session(&program);
    let mut inputs = session.inputs(0).unwrap();
    let mut clock = Clock::disabled(program.steps.len());
    let error = session.run(0, &mut [0; 100], inputs.labels.as_mut_slice(), &mut clock, 0).unwrap_err();
    insta::assert_snapshot!(error, @"expected 12544 bytes of images, got 100");
    assert!(
        session.write_value(0, 0, &[0.0]).unwrap_err().to_string().contains("`images` is not in the arena")
    );
    assert!(
        session.write("fc.bias", &[0.0; 3]).unwrap_err().to_string().contains("shape [10], got 3 values")
    );
    assert!(session.read("fc.nothing").unwrap_err().to_string().contains("`fc.nothing`"));
    session.write("fc.bias", &[0.5; 10]).unwrap();
    assert_eq!(session.read("fc.bias").unwrap(), [0.5; 10]);
    assert!(
        inputs.images.len() == 12544
            && session
                .run(0, inputs.images.as_mut_slice(), inputs.labels.as_mut_slice(), &mut clock, 0)
                .is_ok()
    );
}

/// Batch norm of vectors after a flattened map and one other layer, and a linear layer for the logits.
fn vectors(before: &[Op], features: usize) -> Graph {
    let (mut graph, mut x) = GraphBuilder::new("vectors", Shape(vec![2, 3, 2]));
    for (name, op) in ["flatten", "fc1"].iter().zip(before) {
        x = graph.add(name, op.clone(), &[x]).unwrap();
    }
    x = graph.add("norm", BatchNorm2d::new(features), &[x]).unwrap();
    let linear = Linear { in_features: features, out_features: 4, bias: true };
    x = graph.add("fc2", linear, &[x]).unwrap();
    graph.finish(x).unwrap()
}

#[test]
fn batch_norm_after_a_linear_layer_has_the_compute_precision() {
    let linear = Linear { in_features: 12, out_features: 5, bias: true };
    let graph = vectors(&[Flatten.into(), linear.into()], 5);
    let program = training_program(&graph, Precision::Bf16, 3);
    let [fc1, norm] = ["fc1:y", "norm:y"].map(|name| program.find(name).unwrap());
    let dtype = |id: ValueId| program.value(id).dtype;
    assert_eq!([fc1, norm].map(dtype), [DType::F32, DType::Bf16]);
    assert_eq!([fc1, norm].map(|id| dtype(program.gradient_of(id).unwrap())), [DType::Bf16; 2]);
}

/// The loss of a network that ends with a flattened map is that of `[classes]` per sample.
#[test]
fn logits_of_a_flattened_map_are_a_matrix() {
    for [height, width] in [[1, 1], [2, 3]] {
        let text = format!(
            "name = \"flat\"\ninput = [3, 8, 8]\n[[layer]]\nname = \"conv\"\nop = \"conv2d\"\nout_channels = \
             5\nkernel = 3\n[[layer]]\nname = \"pool\"\nop = \"adaptive_avg_pool2d\"\noutput = [{height}, \
             {width}]\n[[layer]]\nname = \"flatten\"\nop = \"flatten\"\n"
        );
        let graph = stratus_graph::layer_file::parse(&text).unwrap();
        for (mode, precision) in [(Mode::Train, Precision::Bf16), (Mode::Evaluate, Precision::F32)] {
            let program = lower(&graph, mode, precision, 2).unwrap();
            let loss = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap();
            assert_eq!(loss.kernel.name(), "softmax_cross_entropy");
            let logits = program.value(loss.inputs[0]);
            assert_eq!((&logits.shape[..], logits.dtype), (&[2, 5 * height * width][..], DType::F32));
            assert_eq!(program.value(loss.inputs[1]).shape, [2]);
        }
    }
}
