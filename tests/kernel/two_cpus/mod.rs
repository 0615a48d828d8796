//! Tests that need a second CPU.

mod after_sleep;
mod migrations;
mod sleep_in_the_run_queue;
