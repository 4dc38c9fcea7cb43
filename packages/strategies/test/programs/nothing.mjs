/** Returns nothing. */
export default () => {};
