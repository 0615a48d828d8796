//! The pages of the documentation agree with the program: scripts and queries run, and every option,
//! column, name and file that they mention exists.

mod coming_from;
mod names;
mod recipes;
mod scripts;
