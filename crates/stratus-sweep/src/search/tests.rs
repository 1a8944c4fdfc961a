use super::*;
use toml::de::DeTable;

fn range(text: &str) -> Domain {
    Domain::Range(NumberRange::read(DeTable::parse(text).unwrap().get_ref(), false).unwrap())
}

/// A learning rate, a momentum and a batch size with a width.
fn search(method: SearchMethod, seed: u64) -> Search {
    let pairs = [["64", "8"], ["128", "16"], ["256", "32"]];
    let choices = Domain::Choices(pairs.map(|pair| pair.map(str::to_owned).to_vec()).to_vec());
    let dimensions = vec![
        Dimension { axes: vec![0], domain: range("log_uniform = [1e-5, 1]") },
        Dimension { axes: vec![2], domain: range("uniform = [0, 0.99]") },
        Dimension { axes: vec![1, 3], domain: choices },
    ];
    let objective = Some(EpochMetric::ValTop1);
    Search { method, trials: 30, seed, objective, space: Space { dimensions } }
}

/// An accuracy that is best, 1, at a learning rate of 0.02, a momentum of 0.9 and a batch of 128.
fn accuracy(values: &[String]) -> f64 {
    let number = |at: usize| values[at].parse::<f64>().unwrap();
    let rate = (number(0) / 0.02).log10() / 2.0;
    let batch = if values[1] == "128" { 0.0 } else { 0.3 };
    1.0 - rate.powi(2) - (number(2) - 0.9).powi(2) - batch
}

/// Draws all trials; returns the values and the best accuracy.
fn best_of(search: &Search) -> (Vec<Vec<String>>, f64) {
    let (mut cells, mut observations): (Vec<Vec<String>>, Vec<Observation>) = (Vec::new(), Vec::new());
    let mut best = f64::NEG_INFINITY;
    for trial in 1..=search.trials {
        let values = search.draw(trial, 0, &observations);
        let result = accuracy(&values);
        best = best.max(result);
        observations.push(search.observe(&values, Some(result)).unwrap());
        cells.push(values);
    }
    (cells, best)
}

#[test]
fn tpe_finds_better_cells_than_random_search() {
    let (mut better, mut regret) = (0, [0.0, 0.0]);
    for seed in 0..40 {
        let [random, tpe] = [SearchMethod::Random, SearchMethod::Tpe].map(|method| {
            let (_, best) = best_of(&search(method, seed));
            1.0 - best
        });
        better += usize::from(tpe <= random);
        regret = [regret[0] + random, regret[1] + tpe];
    }
    assert!(better >= 30, "better or equal for {better} of 40 seeds");
    assert!(regret[1] < 0.5 * regret[0], "{regret:?}");
}

#[test]
fn draws_are_a_function_of_seed_trial_and_results() {
    for method in [SearchMethod::Random, SearchMethod::Tpe] {
        let (cells, _) = best_of(&search(method, 3));
        assert_eq!(best_of(&search(method, 3)).0, cells);
        assert_ne!(best_of(&search(method, 4)).0, cells);
    }
    // TPE begins with the cells of a random search.
    let [random, tpe] = [SearchMethod::Random, SearchMethod::Tpe].map(|method| best_of(&search(method, 3)).0);
    assert_eq!(random[..STARTUP_TRIALS], tpe[..STARTUP_TRIALS]);
    assert_ne!(random[STARTUP_TRIALS..], tpe[STARTUP_TRIALS..]);
}

#[test]
fn cells_without_a_result_are_avoided() {
    let search = search(SearchMethod::Tpe, 0);
    let mut observations = Vec::new();
    for trial in 1..=20 {
        let values = search.draw(trial, trial as u32 + MAX_TPE_ATTEMPTS, &[]);
        let rate: f64 = values[0].parse().unwrap();
        // Higher learning rates diverge.
        observations.push(search.observe(&values, (rate < 1e-3).then_some(0.5)).unwrap());
    }
    let is_low = |attempt| search.draw(21, attempt, &observations)[0].parse::<f64>().unwrap() < 1e-3;
    let low = (0..MAX_TPE_ATTEMPTS).filter(|&attempt| is_low(attempt)).count();
    assert!(low >= 16, "{low} of {MAX_TPE_ATTEMPTS}");
}

#[test]
fn values_outside_the_space_are_recognised() {
    let search = search(SearchMethod::Random, 0);
    let values = search.draw(1, 0, &[]);
    assert!(search.observe(&values, None).is_some_and(|cell| cell.loss == f64::INFINITY));
    for (at, value) in [(0, "2"), (0, "fast"), (1, "65"), (2, "-0.1"), (3, "9")] {
        let mut other = values.clone();
        other[at] = value.to_owned();
        assert_eq!(search.observe(&other, None), None, "{value}");
    }
}
