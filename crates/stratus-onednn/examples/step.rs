use stratus_engine::program::Mode;
use stratus_engine::*;
fn main() {
    let p = if std::env::args().nth(1).as_deref() == Some("bf16") { Precision::Bf16 } else { Precision::F32 };
    let n = stratus_graph::zoo::find("digits").unwrap();
    let g = (n.build)(&(n.defaults)()).unwrap();
    let be = stratus_onednn::OneDnn::load(0).unwrap();
    println!("{}", be.describe());
    let pr = lower::lower(&g, Mode::Train, p, 1024).unwrap();
    let pr = fuse::fuse(&pr).unwrap();
    let pr = differentiate::differentiate(&pr).unwrap();
    let pr = update::update(&pr, update::Optimiser::Sgd(ops::SgdUpdate { momentum: 0.9, weight_decay: 0.0 }))
        .unwrap();
    let mut per = Default::default();
    let t = std::time::Instant::now();
    let mut ch = Choices::default();
    if let Some(t) = std::env::args().nth(2) {
        for v in &pr.values {
            ch.layouts.insert(v.name.clone(), t.clone());
        }
    }
    let plan = Plan::prepare(&be, &pr, ch, true, &mut per).unwrap();
    println!("prepare {:?} arena {}", t.elapsed(), plan.plan.transient_bytes);
    let mut s = Session::new(vec![plan], per).unwrap();
    let mut i = s.inputs(0).unwrap();
    let names: Vec<_> = s.state().map(|(n, sh, _)| (n.to_string(), sh.iter().product::<usize>())).collect();
    let mut r = 1u32;
    for (n, len) in names {
        let v: Vec<f32> = (0..len)
            .map(|_| {
                r = r.wrapping_mul(1664525).wrapping_add(1013904223);
                ((r >> 8) as f32 / 8388608.0 - 1.0) * 0.1
                    + if n.contains(".1.weight") || n.contains("var") { 1.0 } else { 0.0 }
            })
            .collect();
        s.write(&n, &v).unwrap();
    }
    for (k, b) in i.images.as_mut_slice().chunks_exact_mut(2).enumerate() {
        b.copy_from_slice(&(0x3c00u16 + (k as u16 % 200)).to_le_bytes());
    }
    let steps = s.plan(0).program.steps.len();
    let mut c = Clock::new(steps);
    let mut best = vec![u64::MAX; steps];
    let mut tot = f64::MAX;
    let mut all = vec![];
    s.set_hyper(session::Hyper { learning_rate: 0.0001 });
    for _ in 0..std::env::args().nth(3).and_then(|s| s.parse().ok()).unwrap_or(60) {
        c.begin_iteration();
        c.restart();
        let t = std::time::Instant::now();
        s.run(0, i.images.as_mut_slice(), i.labels.as_mut_slice(), &mut c, 0).unwrap();
        let e = t.elapsed().as_secs_f64();
        tot = tot.min(e);
        all.push(e);
        for (b, v) in best.iter_mut().zip(c.slots()) {
            *b = (*b).min(*v);
        }
    }
    for (k, st) in s.plan(0).program.steps.iter().enumerate() {
        println!(
            "{:>9.1}us {:30} {:20} {} ",
            best[k] as f64 / 1e3,
            {
                use stratus_engine::ops::KernelSpec;
                st.kernel.name()
            },
            s.plan(0).program.layer_name(st),
            s.plan(0).steps[k].implementation
        );
    }
    all.sort_by(f64::total_cmp);
    println!("metrics {:?}", s.metrics());
    println!(
        "best {:.2}ms {:.0} img/s median {:.2}ms {:.0} img/s",
        tot * 1e3,
        1024.0 / tot,
        all[all.len() / 2] * 1e3,
        1024.0 / all[all.len() / 2]
    );
}
