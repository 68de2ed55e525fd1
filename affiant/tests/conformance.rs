//! The truth matrix against the real binary: no lie and no shrug in any row.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use conformance::matrix::{Plan, Tally, rows};
use conformance::subject::Home;
use std::path::Path;

/// M-5, S-1, S-3, D-7, C-9, E-3: every row of the matrix, whatever the fault, method, transport and
/// contract. `AFFIANT_ROWS=h2/tls` plays those whose id holds the text.
#[test]
fn x_1_x_3_no_lie_and_no_shrug() {
    let mut rows = rows();
    assert!(rows.len() > 5_000, "only {} rows", rows.len());
    if let Ok(wanted) = std::env::var("AFFIANT_ROWS") {
        rows.retain(|row| row.id().contains(&wanted));
    }
    let home = Home::new(Path::new(env!("CARGO_BIN_EXE_affiant"))).unwrap();
    let plan = Plan::new(rows).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(home.play(plan, 48)).unwrap();
    eprintln!("{}", report.table());
    let Tally { rows, lies, shrugs } = report.tally();
    assert_eq!((lies, shrugs, report.skipped), (0, 0, 0), "of {rows} rows");
    assert_eq!(report.not_reused(), Vec::<String>::new());
    home.run(&["journal", "verify"]).unwrap();
}
