//! A session allocates only when it is created.

use crate::common::{published_digits, session, training_program};
use stratus_engine::session::IterationScalars;
use stratus_engine::{Clock, Precision};
use stratus_testing::allocator::requests;

#[test]
fn running_allocates_nothing() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let program = training_program(&published_digits(), precision, 4);
        let mut session = session(&program);
        let mut inputs = session.inputs(0).unwrap();
        let mut clock = Clock::new(program.steps.len());
        let before = requests();
        assert!(before > 0, "the allocator counts nothing");
        for _ in 0..2 {
            clock.begin_iteration();
            session
                .set_iteration_scalars(IterationScalars { learning_rate: 0.1, iteration: 0, seed: 0 })
                .unwrap();
            session
                .run(0, inputs.images.as_mut_slice(), inputs.labels.as_mut_slice(), &mut clock, 0)
                .unwrap();
            assert!(session.metrics().samples > 0.0);
        }
        assert_eq!(requests(), before);
    }
}
