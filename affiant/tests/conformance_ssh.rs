//! The truth matrix of SSH against the real binary: stock OpenSSH, scripted targets, no lie and no
//! shrug in any row.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use conformance::matrix::Tally;
use conformance::ssh::{Placed, rows};
use conformance::subject::Home;
use std::path::Path;

/// C-1, C-2, D-3, S-1, S-8, E-5: every row, whatever the fault. `AFFIANT_ROWS=ssh/exec`
/// plays those whose id holds the text.
#[test]
fn x_1_x_4_no_lie_and_no_shrug_over_ssh() {
    let mut rows = rows();
    assert!(rows.len() > 280, "only {} rows", rows.len());
    if let Ok(wanted) = std::env::var("AFFIANT_ROWS") {
        rows.retain(|row| row.id().contains(&wanted));
    }
    let home = Home::new(Path::new(env!("CARGO_BIN_EXE_affiant"))).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let rows = Placed::new(rows).unwrap();
        home.play_ssh(rows, 24).await.unwrap()
    });
    eprintln!("{}", report.table());
    let Tally { rows, lies, shrugs } = report.tally();
    assert_eq!((lies, shrugs), (0, 0), "of {rows} rows");
    home.run(&["journal", "verify"]).unwrap();
}
